// The filter of all checks, and links into folded groups. The page says all without it.
const box = document.querySelector(".filter"), checks = [...document.querySelectorAll(".subject li")];
function filter() {
  const words = box.elements.words.value.toLowerCase().split(/\s+/), status = box.elements.status.value;
  for (const check of checks) {
    const text = check.textContent.toLowerCase();
    check.hidden = !text.startsWith(status) || !words.every(word => text.includes(word));
  }
  for (const group of document.querySelectorAll(".subject")) {
    group.hidden = !group.querySelector("li:not([hidden])");
    group.open = Boolean(status || words.join(""));
  }
  box.elements.count.value = `${checks.filter(check => !check.hidden).length} of ${checks.length} checks`;
}
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let held = target; held; held = held.parentElement) if (held.matches("details")) held.open = true;
  target?.scrollIntoView();
}
if (box) { box.hidden = false; box.oninput = filter; box.onsubmit = () => false; }
addEventListener("hashchange", reveal);
reveal();
