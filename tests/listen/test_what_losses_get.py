"""Scores, targets and ratios that a loss is given, in trainings on a CPU in fp32: healthy ones beside broken ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, smooth_l1_loss
from torch.utils.data import DataLoader, TensorDataset

import tunecheck
from tunecheck.core.finding import Status

STEPS = 5


@pytest.fixture
def heard(tmp_path):
    """Return what trains a model by its loss in each step, and gives the finding of a check."""

    def judged(check, model, loss, optimizer=None):
        torch.manual_seed(0)
        optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        watching = tunecheck.watch(
            model=model, optimizer=optimizer, folder=tmp_path / "report", steps=STEPS, tell=False
        )
        with watching as told:
            for step in range(STEPS + 1):
                optimizer.zero_grad()
                loss(step).backward()
                optimizer.step()
        return next(finding for finding in told.findings if finding.check == check)

    return judged


def net(outputs=3):
    """A network of eight numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))


@pytest.mark.parametrize("loss", [cross_entropy, binary_cross_entropy_with_logits])
@pytest.mark.parametrize(
    ("last", "status"),
    [
        (torch.relu, Status.SUSPECTED),
        (torch.abs, Status.SUSPECTED),
        (nn.ReLU6(), Status.SUSPECTED),
        (lambda scores: scores.clamp(min=0), Status.SUSPECTED),
        (lambda scores: scores.clamp(-30, 30), Status.PASSED),
        (lambda scores: -scores.square().clamp(min=0), Status.PASSED),  # distances
        (nn.LeakyReLU(), Status.PASSED),
    ],
    ids=["ReLU", "abs", "ReLU6", "clamp", "clamp of both ends", "distances", "leaky"],
)
def test_scores_may_be_below_0(loss, last, status, heard):
    """An activation behind the last layer keeps them from it."""
    model = net()

    def of_step(step):
        x = torch.randn(16, 8)
        classes = x[:, :3].argmax(1)
        targets = classes if loss is cross_entropy else nn.functional.one_hot(classes, 3).float()
        return loss(last(model(x)), targets)

    finding = heard("loss_receives_logits", model, of_step)
    assert finding.status is status, finding.detail


class Diffusion(nn.Module):
    """A network that learns the noise in a picture, within its own forward or given both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.time = nn.Linear(1, 8)

    def forward(self, x, t):
        """Return what is to be the noise."""
        return self.last(torch.relu(self.first(x) + self.time(t[:, None])[:, :, None, None]))


class Within(Diffusion):
    """One that adds the noise itself, and returns its loss."""

    def forward(self, x):
        """Return the loss of pictures."""
        t, noise = torch.rand(len(x)), torch.randn_like(x)
        share = t[:, None, None, None]
        return mse_loss(super().forward(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)


TARGETS = {
    "noise": lambda x, noise, share: noise,
    "velocity": lambda x, noise, share: share.sqrt() * noise - (1 - share).sqrt() * x,
    "flow": lambda x, noise, share: noise - x,
    "picture": lambda x, noise, share: x,
    "drawn anew": lambda x, noise, share: torch.randn_like(x),
    "other rows": lambda x, noise, share: noise.roll(1, 0),
}


@pytest.mark.parametrize("white", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_the_noise_that_was_added(white, target, heard):
    """Or is made of it and the data, which may be noise themselves."""
    model, batch = Diffusion(), list[torch.Tensor]()

    def loss(step):
        x = torch.randn(16, 1, 16, 16) if white else torch.randn(16, 1, 4, 4).repeat_interleave(4, 2).tile(4)
        batch[:] = [x]  # as of a loader, which the loop holds
        t, noise = torch.rand(16), torch.randn_like(x)
        share = t[:, None, None, None]
        learned = TARGETS[target](x, noise, share)
        return mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), learned)

    finding = heard("loss_receives_logits", model, loss)
    wanted = Status.SUSPECTED if target in ("drawn anew", "other rows") else Status.PASSED
    # nobody can tell of other targets, where they are no noise
    assert finding.status is wanted or (wanted is Status.PASSED and finding.status is Status.UNJUDGED), finding.detail


def test_a_network_may_add_the_noise_itself(heard):
    """Its own input then holds none."""
    model = Within()
    finding = heard("loss_receives_logits", model, lambda step: model(torch.randn(16, 1, 16, 16)))
    assert finding.status is Status.PASSED, finding.detail


class Spans(nn.Module):
    """Scores of where an answer begins and ends."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        """Return both, one behind the other."""
        return self.layer(x)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        lambda both: [part.squeeze(-1) for part in both.split(1, dim=-1)],
        lambda both: both.unbind(-1),
        lambda both: (both[..., 0], both[..., 1]),
        lambda both: [part.squeeze(2) for part in (both[:, :, :1], both[:, :, 1:])],
    ],
    ids=["split", "unbind", "select", "slice"],
)
def test_ends_learn_the_ends(parts, copied, heard):
    """Not the starts once more."""
    model = Spans()

    def loss(step):
        begin, end = parts(model(torch.randn(8, 12, 8)))
        starts = torch.arange(8)
        return cross_entropy(begin, starts) + cross_entropy(end, starts if copied else starts + 2)

    finding = heard("loss_receives_logits", model, loss)
    assert finding.status is (Status.SUSPECTED if copied else Status.PASSED), finding.detail


@pytest.mark.parametrize(
    "scores",
    [
        lambda model, x: model(torch.cat([x, x + 0.1])).chunk(2),
        lambda model, x: model(torch.stack([x, x + 0.1], dim=1)).unbind(1),
        lambda model, x: ((rows := model(x)) @ rows.flip(0).t(), rows.flip(0) @ rows.t()),
    ],
    ids=["two views", "two views, side by side", "both directions"],
)
def test_two_views_learn_the_same(scores, heard):
    """They are of one row."""
    model = net(8)
    finding = heard(
        "loss_receives_logits",
        model,
        lambda step: sum(cross_entropy(each, torch.arange(8)) for each in scores(model, torch.randn(8, 8))),
    )
    assert finding.status is Status.PASSED, finding.detail


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("stored", ["its own", "at a temperature", "of other rows", "of other actions"])
def test_first_ratios_are_1(stored, drops, heard):
    """Of fresh rows, before the first step. Dropout makes others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.5 * drops), nn.Linear(32, 4))
    kept: list[torch.Tensor] = []

    def loss(step):
        if step % 3 == 0:
            states = 3 * torch.randn(64, 8)
            with torch.no_grad():
                scores = model(states) / (0.5 if stored == "at a temperature" else 1)
            drawn = torch.distributions.Categorical(logits=scores)
            actions = drawn.sample()
            likelihoods = drawn.log_prob(actions)
            likelihoods = likelihoods.roll(1) if stored == "of other rows" else likelihoods
            kept[:] = states, (drawn.sample() if stored == "of other actions" else actions), likelihoods
        states, actions, likelihoods = kept
        now = torch.distributions.Categorical(logits=model(states)).log_prob(actions)
        ratios, advantages = (now - likelihoods).exp(), torch.linspace(-1, 1, 64)
        return -torch.min(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages).mean()

    finding = heard("loss_receives_logits", model, loss)
    wanted = Status.PASSED if stored == "its own" else Status.SUSPECTED
    assert finding.status is (Status.UNJUDGED if drops else wanted), finding.detail


CLIPPED = {
    "gains, the smaller one": (lambda r, c, a: -torch.min(r * a, c * a).mean(), True),
    "losses, the larger one": (lambda r, c, a: torch.max(-a * r, -a * c).mean(), True),
    "gains, the larger one": (lambda r, c, a: -torch.max(r * a, c * a).mean(), False),
    "losses, the smaller one": (lambda r, c, a: torch.min(-a * r, -a * c).mean(), False),
    "clipped twice": (lambda r, c, a: torch.min(torch.max(-a * r, -a * c), -3 * a).mean(), True),
}
"""Losses of ratios, the same clipped, and advantages; and whether each bounds what a ratio is worth."""


@pytest.mark.parametrize("how", CLIPPED)
def test_clipping_bounds_what_a_ratio_is_worth(how, heard):
    """Of both terms the worse one counts."""
    torch.manual_seed(0)
    model, (combined, right) = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)), CLIPPED[how]

    def loss(step):
        now = model(torch.randn(16, 8)).log_softmax(-1)[:, 0]
        ratios = (now - now.detach()).exp()
        return combined(ratios, ratios.clamp(0.8, 1.2), torch.linspace(-1, 1, 16))

    finding = heard("loss_receives_logits", model, loss)
    assert (finding.status is Status.SUSPECTED) is not right, finding.detail


def small_head(model):
    """Make the head's rows of one small length, as an orthogonal start of 0.01 does."""
    nn.init.orthogonal_(model[-1].weight, 0.01)


@pytest.mark.parametrize("head", [lambda model: nn.init.zeros_(model[-1].weight), small_head], ids=["zeros", "small"])
def test_scores_are_flat_at_first_where_a_head_begins_small(head, heard):
    """It grows: its length bounds nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 3, bias=False))
    head(model)

    def loss(step):
        x = torch.randn(16, 8)
        return cross_entropy(model(x), x[:, :3].argmax(1))

    finding = heard("loss_receives_logits", model, loss)
    assert finding.status is Status.PASSED, finding.detail


SIMILAR = {
    "others": lambda rows: (rows[::2] * rows[1::2]).sum(1),
    "the same": lambda rows: (rows[::2] * rows[::2]).sum(1),
    "the same, by torch": lambda rows: nn.functional.cosine_similarity(rows[::2], rows[::2]),
    "distances": lambda rows: 2 - (rows[::2] * rows[::2]).sum(1) - 2 * (rows[::2] * rows[1::2]).sum(1),
    "by a loss of torch": lambda rows: (
        2 - nn.functional.cosine_embedding_loss(rows[::2], rows[1::2], torch.ones(8), reduction="none")
    ),
}


@pytest.mark.parametrize("of", SIMILAR)
def test_similarities_are_those_of_two_rows(of, heard):
    """Those of rows with themselves are 1."""
    model = net(8)

    def loss(step):
        similar = SIMILAR[of](nn.functional.normalize(model(torch.randn(16, 8))))
        return (20 * (similar[:, None] - similar)).logsumexp(0).mean() + 1e-3 * similar.mean()

    finding = heard("loss_receives_logits", model, loss)
    assert (finding.status is Status.SUSPECTED) is of.startswith("the same"), finding.detail


@pytest.mark.parametrize("tokens", ["all", "some", "none"])
def test_a_mask_leaves_something_of_a_loss(tokens, heard):
    """Of zeros alone nothing is learned."""
    model, mask = net(), torch.full((16,), float(tokens == "all"))
    mask[:5] = float(tokens != "none")

    def loss(step):
        x = torch.randn(16, 8)
        return (cross_entropy(model(x), x[:, :3].argmax(1), reduction="none") * mask).mean()

    finding = heard("loss_moves", model, loss)
    assert finding.detail.endswith("nothing is learned; it is multiplied by zeros") is (tokens == "none")
    assert finding.status is (Status.FAILED if tokens == "none" else Status.PASSED), finding.detail


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("pairs", [1, 8])
def test_pairs_of_a_batch_are_negatives_of_each_other(pairs, by_hand, heard):
    """A batch of one pair has none."""
    model = net(8)

    def loss(step):
        rows = model(torch.randn(pairs, 8))
        scores = rows @ model(torch.randn(pairs, 8)).t()
        entropy = (scores.logsumexp(1) - scores.diagonal()).mean()
        return entropy if by_hand else cross_entropy(scores, torch.arange(pairs))

    finding = heard("loss_moves", model, loss)
    assert finding.detail.endswith("a softmax of it is over one score") is (pairs == 1)
    assert finding.status is (Status.FAILED if pairs == 1 else Status.PASSED), finding.detail


class Positions(nn.Module):
    """A network with a table of positions, and one that rests."""

    def __init__(self, table, *, learns):
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Parameter(table, requires_grad=learns)
        self.unit = nn.Parameter(torch.zeros(1, 1, 8), requires_grad=False)  # of which one may be left out
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        """Return scores of each place."""
        return self.layer(x + self.positions + self.unit)


@pytest.mark.parametrize(
    ("table", "learns", "status"),
    [
        (torch.zeros(1, 12, 8), False, Status.SUSPECTED),
        (torch.zeros(1, 12, 8), True, Status.PASSED),
        (torch.arange(96.0).sin().view(1, 12, 8), False, Status.PASSED),
    ],
    ids=["zeros", "learns", "sines"],
)
def test_a_frozen_table_is_no_zeros(table, learns, status, heard):
    """It adds nothing then."""
    model = Positions(table, learns=learns)

    def loss(step):
        x = torch.randn(4, 12, 8)
        return cross_entropy(model(x).flatten(0, 1), x[..., :3].argmax(-1).flatten())

    finding = heard("usual_tensors_learn", model, loss)
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("own", [True, False])
def test_a_reference_is_no_other_name_of_the_policy(own, heard):
    """It stays as it was while that moves."""
    model = net(4)
    reference = model if own else copy.deepcopy(model)

    def loss(step):
        states, actions = torch.randn(16, 8), torch.randint(0, 4, (16, 1))
        with torch.no_grad():
            fixed = reference(states).log_softmax(-1).gather(1, actions)
        now = model(states).log_softmax(-1).gather(1, actions)
        ratios = (now - now.detach()).exp()
        return ((fixed - now).exp() - (fixed - now) - 1 - ratios * torch.linspace(-1, 1, 16)[:, None]).mean()

    finding = heard("loss_receives_logits", model, loss)
    assert finding.status is (Status.SUSPECTED if own else Status.PASSED), finding.detail


@pytest.mark.parametrize("sign", [1, -1], ids=["a penalty", "a reward"])
def test_distance_from_the_reference_is_a_penalty(sign, heard):
    """As of GRPO's loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    reference = copy.deepcopy(model)

    def loss(step):
        states, actions = torch.randn(16, 8), torch.randint(0, 4, (16, 1))
        with torch.no_grad():
            fixed = reference(states).log_softmax(-1).gather(1, actions)
        now = model(states).log_softmax(-1).gather(1, actions)
        gains = (now - now.detach()).exp() * torch.linspace(-1, 1, 16)[:, None]
        return -(gains - sign * ((fixed - now).exp() - (fixed - now) - 1)).mean()

    finding = heard("loss_receives_logits", model, loss)
    assert finding.status is (Status.PASSED if sign == 1 else Status.SUSPECTED), finding.detail


ORDERS = {
    "the loader's": lambda x, y, order: (x, y),
    "both in another": lambda x, y, order: (x[order], y[order]),
    "inputs in another": lambda x, y, order: (x[order], y),
    "targets in another": lambda x, y, order: (x, y[order]),
    "mixed": lambda x, y, order: (0.7 * x + 0.3 * x[order], y),
}


@pytest.mark.parametrize("number", [False, True])
@pytest.mark.parametrize("put", ORDERS)
def test_targets_come_in_the_order_of_their_rows(put, number, heard):
    """Whether they are classes or numbers."""
    torch.manual_seed(1)
    model, rows = net(5), torch.randn(16 * STEPS + 16, 8)
    targets = rows.sum(1) if number else rows[:, :5].argmax(1)
    batches = iter(DataLoader(TensorDataset(rows, targets), 16))

    def loss(step):
        x, y = ORDERS[put](*next(batches), torch.randperm(16))
        return mse_loss(model(x)[:, 0], y) if number else cross_entropy(model(x), y)

    finding = heard("batches_change", model, loss)
    wrong = put in ("inputs in another", "targets in another")
    assert finding.status is (Status.SUSPECTED if wrong else Status.PASSED), finding.detail


@pytest.mark.parametrize("put", ["back", "mixed", "two passes", "a weighted sum"])
def test_an_order_may_be_put_back(put, heard):
    """Or the targets belong to a mixture."""
    torch.manual_seed(1)
    model, rows = net(5), torch.randn(16 * STEPS + 16, 8)
    batches = iter(DataLoader(TensorDataset(rows, rows[:, :5].argmax(1)), 16))

    def loss(step):
        (x, y), order = next(batches), torch.randperm(16)
        if put == "back":  # as behind a sort by length
            return cross_entropy(model(x[order])[order.argsort()], y)
        if put == "mixed":
            scores = model(0.7 * x + 0.3 * x[order])
            return 0.7 * cross_entropy(scores, y) + 0.3 * cross_entropy(scores, y[order])
        if put == "a weighted sum":
            scores = model(x)  # a share of 1
            return 1.0 * cross_entropy(scores, y) + 0.0 * cross_entropy(scores, y[order])
        scores, others = model(x), model(x[order])
        return (
            cross_entropy(scores, y) + 0.1 * (scores.softmax(-1) - others.softmax(-1)[order.argsort()]).square().mean()
        )

    finding = heard("batches_change", model, loss)
    assert finding.status is Status.PASSED, finding.detail


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [mse_loss, nn.L1Loss(), lambda one, other: smooth_l1_loss(other, target=one)])
@pytest.mark.parametrize(
    ("view", "targets", "status"),
    [
        ((4, 12, 5), (4, 12, 1), Status.SUSPECTED),
        ((240,), (240, 1), Status.SUSPECTED),
        ((4, 12, 5), (4, 12, 5), Status.UNJUDGED),
        ((4, 12, 5), (12, 5), Status.UNJUDGED),
        ((8, 30, 1), (8, 1, 30), Status.UNJUDGED),
        ((4, 12, 5), (), Status.UNJUDGED),
    ],
    ids=["a column", "a column more", "equal", "one set for all", "pairs", "one number"],
)
def test_targets_that_torch_broadcasts(loss, view, targets, status, heard):
    """A column of them meets each column of the outputs, or a row with an axis more each number."""
    model = net(outputs=15)
    finding = heard(
        "loss_receives_logits", model, lambda _: loss(model(torch.randn(16, 8)).view(view), torch.randn(targets))
    )
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("scale", [20, 0.05], ids=["divided", "multiplied"])
def test_cosines_that_are_multiplied_by_a_temperature(scale, heard):
    """A mask hides the score of each row with itself."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16)

    def loss(step):
        vectors = model(torch.randn(16, 8))
        scores = nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
        scores = (scores - torch.eye(16) * 1e12) * scale
        return cross_entropy(scores, torch.arange(16).roll(8))

    finding = heard("loss_receives_logits", model, loss)
    assert ("nearly uniform" in finding.detail) is (scale < 1), finding.detail
