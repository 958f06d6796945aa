// The filter of all checks, and links into folded groups. The page says all without it.
const box = document.querySelector(".filter"), checks = [...document.querySelectorAll("[data-status]")];
const texts = checks.map(check => check.textContent.toLowerCase());
const groups = [...document.querySelectorAll(".subject")];
function filter() {
  const words = box.elements.words.value.toLowerCase().split(/\s+/), status = box.elements.status.value;
  const hit = checks.map((check, at) => (!status || check.dataset.status === status) && words.every(word => texts[at].includes(word)));
  checks.forEach((check, at) => { check.hidden = !hit[at]; });
  groups.forEach(group => {
    group.hidden = !group.querySelector("[data-status]:not([hidden])");
    group.open = Boolean(status || words.join(""));
  });
  box.elements.count.value = `${hit.filter(Boolean).length} of ${checks.length} checks`;
}
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let held = target; held; held = held.parentElement) if (held.matches("details")) held.open = true;
  if (target) target.scrollIntoView();
}
if (box) { box.hidden = false; box.oninput = filter; box.onsubmit = () => false; }
addEventListener("hashchange", reveal);
reveal();
