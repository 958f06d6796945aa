"""What a loop differentiates, recognised in its graph: the model's own loss, or a cross entropy of its logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cosine_similarity,
    cross_entropy,
    l1_loss,
    log_softmax,
    mse_loss,
    nll_loss,
    normalize,
    smooth_l1_loss,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunecheck.checks import CHECKS
from tunecheck.core.premises import Premise
from tunecheck.listen.batches import batch_of
from tunecheck.listen.loop_loss import (
    FROM_PADDING,
    FURTHER,
    OWN_MASK,
    UNKNOWN,
    WEIGHED,
    Pass,
    another_kind,
    loss_of,
    not_followed,
)
from tunecheck.listen.loss_calls import LossCalls, normalised
from tunecheck.listen.loss_functions import scores_given
from tunecheck.probes.reference.measures import PART
from tunecheck.probes.reference.padded import used
from tunecheck.training.data import IGNORED

CPU = torch.device("cpu")
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
LABELS = torch.tensor([[IGNORED, 2, 3, 4], [IGNORED, IGNORED, 7, IGNORED]])


@pytest.fixture
def called():
    """A pass over two rows, and its logits in another dtype than the loss takes."""
    weights = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    each = Pass({"input_ids": IDS, "attention_mask": MASK})
    each.returned((weights.bfloat16() * 1,))
    return each


def flat(logits, labels, **settings):
    """The cross entropy of the positions but the last with the tokens behind them."""
    return cross_entropy(logits[:, :-1].float().reshape(-1, 9), labels[:, 1:].reshape(-1), **settings)


TAKEN = {
    "flattened": flat,
    "classes second": lambda logits, labels: cross_entropy(logits[:, :-1].float().transpose(1, 2), labels[:, 1:]),
    "nll_loss": lambda logits, labels: nll_loss(
        log_softmax(logits[:, :-1].float(), -1).reshape(-1, 9), labels[:, 1:].reshape(-1)
    ),
    "a stretch": lambda logits, labels: cross_entropy(logits[:, :3].float().flatten(0, 1), labels[:, 1:].flatten()),
    "another ignored number": lambda logits, labels: flat(logits, labels.masked_fill(labels < 0, 0), ignore_index=0),
    "scaled": lambda logits, labels: flat(logits, labels) / 2,
}


@pytest.mark.parametrize("take", TAKEN.values(), ids=TAKEN)
def test_a_cross_entropy_of_the_logits_tells_the_labels(take, called):
    """Wherever the loop shifts, flattens and scales."""
    loss = loss_of(take(called.logits, LABELS), [called])
    batch, unjudged = loss.batch(called, CPU)

    assert batch.labels.tolist() == LABELS.tolist()
    assert batch.supervised_tokens == 4
    assert unjudged == {}


@pytest.mark.parametrize("divided", [True, False], ids=["a mean of each row", "a mean of all"])
def test_what_a_loop_counts_by_a_mask_of_its_own_are_the_labels(divided, called):
    """It takes the entropy of every token, padding included, and multiplies."""
    tokens, counted = LABELS.clamp(min=0), (LABELS[:, 1:] != IGNORED).float()
    entropies = cross_entropy(called.logits[:, :-1].float().transpose(1, 2), tokens[:, 1:], reduction="none")
    sums = (entropies * counted).sum(dim=1) / counted.sum(dim=1 if divided else None)
    batch, unjudged = loss_of(sums.mean() if divided else sums.sum(), [called]).batch(called, CPU)

    assert batch.labels.tolist() == LABELS.tolist()
    assert unjudged.keys() == {Premise.TOKEN_MEAN_LOSS}


def test_entropies_that_all_count_by_0_tell_no_labels(called):
    """As a policy's, whose samples are worth the same."""
    entropies = cross_entropy(called.logits[:, :-1].float().transpose(1, 2), IDS[:, 1:], reduction="none")
    _, unjudged = loss_of((entropies * 0).sum(), [called]).batch(called, CPU)

    assert Premise.LABELS_KNOWN in unjudged


def test_what_the_last_position_predicts_is_one_token_more(called):
    """Rows that were shifted before the model was called: only where there is such a token."""
    ahead = torch.tensor([[2, 3, 4, 8], [IGNORED, 7, IGNORED, IGNORED]])
    loss = loss_of(cross_entropy(called.logits.float().flatten(0, 1), ahead.flatten()), [called])
    batch, _ = loss.batch(called, CPU)

    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 8], [5, 6, 7, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch.labels[:, 1:].tolist() == ahead.tolist()


def test_logits_of_the_last_positions_alone_are_placed_at_the_rows_end():
    """As with logits_to_keep: the labels of the positions before are not looked at."""
    logits = torch.randn(2, 3, 9, requires_grad=True) * 1
    each = Pass({"input_ids": IDS, "attention_mask": MASK, "logits_to_keep": 3})
    each.returned((logits,))
    batch, unjudged = loss_of(flat(logits, LABELS[:, 1:]), [each]).batch(each, CPU)

    assert batch.labels[:, 2:].tolist() == LABELS[:, 2:].tolist()
    assert batch.labels[:, :2].eq(IGNORED).all()
    assert unjudged == {}


def test_a_target_that_is_not_shifted_is_told_as_it_is(called):
    """Each position predicts its own token: the label behind it is not the token there."""
    loss = loss_of(cross_entropy(called.logits.float().flatten(0, 1), IDS.flatten()), [called])
    batch, _ = loss.batch(called, CPU)

    assert batch.labels[0, 1:].tolist() == IDS[0].tolist()
    assert batch.labels[0, 1] != batch.input_ids[0, 1]


MEAN = Premise.TOKEN_MEAN_LOSS
OWN = {
    "a temperature": (lambda logits: flat(logits / 2, LABELS), UNKNOWN, [Premise.LABELS_KNOWN]),
    "only supervised positions": (
        lambda logits: cross_entropy(logits[:, :-1][LABELS[:, 1:] > 0].float(), LABELS[:, 1:][LABELS[:, 1:] > 0]),
        UNKNOWN,
        [Premise.LABELS_KNOWN],
    ),
    "label smoothing": (lambda logits: flat(logits, LABELS, label_smoothing=0.1), FURTHER, [MEAN]),
    "a sum": (lambda logits: flat(logits, LABELS, reduction="sum"), "reduction='sum'", [MEAN]),
    "weights": (lambda logits: flat(logits, LABELS, weight=torch.rand(9)), "weights", [MEAN]),
    "a further term": (
        lambda logits: flat(logits, LABELS) + logits.square().mean(),
        FURTHER,
        [Premise.TOKEN_MEAN_LOSS],
    ),
    "a penalty": (
        lambda logits: flat(logits, LABELS) + torch.ones((), requires_grad=True),
        FURTHER,
        [Premise.TOKEN_MEAN_LOSS, Premise.GRADIENT_BY_FORWARD],
    ),
}


@pytest.mark.parametrize(("take", "reason", "premises"), OWN.values(), ids=OWN)
def test_a_loss_of_the_loops_own_leaves_premises_open_with_the_reason(take, reason, premises, called):
    """A mean over the supervised tokens is expected of no other."""
    _, left_open = loss_of(take(called.logits), [called]).batch(called, CPU)

    assert set(left_open) == set(premises)
    assert all(reason in told for told in left_open.values())


def test_labels_that_the_model_was_given_are_what_its_loss_is_held_to():
    """Whatever the loop compares the logits with."""
    logits = torch.randn(2, 4, 9, requires_grad=True) * 1
    each = Pass({"input_ids": IDS, "attention_mask": MASK, "labels": LABELS})
    each.returned({"loss": flat(logits, LABELS), "logits": logits})
    own, _ = loss_of(flat(logits, IDS), [each]).batch(each, CPU)
    plain, unjudged = loss_of(each.loss * 3, [each]).batch(each, CPU)

    assert own.labels.tolist() == plain.labels.tolist() == LABELS.tolist()
    assert unjudged == {}


@pytest.mark.parametrize("shifted", [True, False])
def test_labels_that_are_shifted_already_suit_a_loss_that_does_not_shift(shifted):
    """The model is given them, too, but its own loss is not the one that is differentiated."""
    logits, later = torch.randn(2, 4, 9, requires_grad=True) * 1, torch.full((2, 1), IGNORED)
    ahead = torch.cat([LABELS[:, 1:], later], dim=1)
    given = ahead if shifted else LABELS
    each = Pass({"input_ids": IDS, "attention_mask": MASK, "labels": given})
    each.returned({"loss": flat(logits, given), "logits": logits})
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ahead.flatten(), ignore_index=IGNORED)
    batch, unjudged = loss_of(loss, [each]).batch(each, CPU)

    assert batch.labels.tolist() == LABELS.tolist()
    assert unjudged == {}


def test_a_pass_that_the_tensor_is_not_made_of_is_left_out(called):
    """Of two passes the window holds the one that is differentiated."""
    other = Pass({"input_ids": IDS})
    other.returned(torch.randn(2, 4, 9, requires_grad=True) * 1)

    assert loss_of(flat(called.logits, LABELS), [other, called]).passes == [called]


MEANT_PLAIN = {
    **TAKEN,
    "not shifted": lambda logits, labels: cross_entropy(logits.float().flatten(0, 1), labels.flatten()),
    "a sum of one row": lambda logits, labels: flat(logits[:1], labels[:1], reduction="sum") / 4,
    "capped": lambda logits, labels: flat(logits, labels).clamp(max=0.5),
}
ANOTHER = {
    "smoothed": lambda logits, labels: flat(logits, labels, label_smoothing=0.1),
    "by hand": lambda logits, labels: -log_softmax(logits.float(), -1).gather(-1, IDS[..., None]).mean(),
    "temperature": lambda logits, labels: flat(logits / 2, labels),
    "weighed": lambda logits, labels: (flat(logits, labels, reduction="none") * torch.arange(6)).sum(),
    "penalty on the logits": lambda logits, labels: flat(logits, labels) + logits.square().mean(),
    "penalty on weights": lambda logits, labels: flat(logits, labels) + torch.ones(3, requires_grad=True).sum(),
}


@pytest.mark.parametrize("take", MEANT_PLAIN.values(), ids=MEANT_PLAIN)
def test_a_cross_entropy_that_may_be_wrong_is_held_to_be_the_plain_one(take, called):
    """Wherever it is taken, and whatever it is multiplied by: a mistake in it must show."""
    assert another_kind(take(called.logits, LABELS), [called]) == ""


@pytest.mark.parametrize("take", ANOTHER.values(), ids=ANOTHER)
def test_a_loss_of_another_kind_is_held_to_be_meant(take, called):
    """What a script computes of logits in a way of its own is no mistake."""
    assert another_kind(take(called.logits, LABELS), [called])


@pytest.mark.parametrize(
    ("left", "first", "dimensions", "reason"),
    [
        (True, False, 2, ""),
        (False, True, 2, ""),
        (True, True, 2, FROM_PADDING),
        (False, False, 4, OWN_MASK),
    ],
    ids=["first without label", "padded right", "padded left", "pairs"],
)
def test_a_form_of_rows_that_is_not_followed_leaves_checks_unjudged(left, first, dimensions, reason):
    """A first token's label behind padding is predicted at a padded position; a mask of pairs is not read."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]) if left else torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    ids = torch.arange(8).view(2, 4)
    labels = ids.masked_fill(mask == 0, IGNORED)
    if not first:
        labels[0, 2] = IGNORED
    given = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    batch = batch_of(given, CPU)
    if dimensions == 4:
        given["attention_mask"] = torch.ones(2, 1, 4, 9)  # beside a cache

    told = not_followed(given, batch)

    assert set(told.values()) == ({reason} if reason else set())
    assert bool(reason) == (not CHECKS["loss_oracle"].needs.isdisjoint(told))
    assert (Premise.POSITIONS_FOLLOWED in told) is (dimensions == 4)


@pytest.mark.parametrize(("share", "reason"), [(0.5, ""), (0.3, WEIGHED)])
def test_passes_that_count_differently_are_no_mean(share, reason):
    """Two losses of one backward pass, as of two tasks; the graph goes on to be there."""
    passes = [Pass({"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}) for _ in range(2)]
    weights = torch.randn(2, 2, 4, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for each, own in zip(passes, weights.unbind(), strict=True):
        each.returned((flat(own * 1, LABELS, ignore_index=IGNORED), own * 1))
    first, second = (each.loss for each in passes)
    tensor = (1 - share) * first + share * second

    loss = loss_of(tensor, passes)

    for each in passes:
        assert set(loss.batch(each, CPU)[1].values()) == ({reason} if reason else set())
    tensor.backward()
    assert weights.grad is not None


@pytest.mark.parametrize(
    ("scores", "of_itself"),
    [
        (lambda one, other: one @ other.t(), 0),
        (lambda one, other: normalize(one) @ normalize(one).t() / 0.05, 1),
        (lambda one, other: (normalize(one) @ normalize(one).t()).bfloat16() / 0.05, 1),
        (lambda one, other: (normalize(one) @ normalize(one).t()).fill_diagonal_(-1e9), 0),
        (lambda one, other: normalize(one) @ normalize(one + 0.3 * other).t() / 0.05, 0),
        (lambda one, other: one @ one.t()[:, :5], 0),
        (lambda one, other: (one @ one.t())[:2, :2], 0),
        (lambda one, other: 0 * (one @ one.t()), 0),
    ],
    ids=["pairs", "itself", "itself in bf16", "masked", "two views", "some", "two rows", "nothing"],
)
def test_rows_that_are_compared_with_themselves(scores, of_itself):
    """A contrastive loss is to tell a row's partner from the others, not the row."""
    torch.manual_seed(0)
    one, other = torch.randn(6, 8, requires_grad=True), torch.randn(6, 8)
    found = scores(one, other)
    loss = cross_entropy(found, torch.arange(len(found)) % found.shape[1])

    assert scores_given(loss, LossCalls()).of_itself == of_itself


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("loss", "crossed"),
    [
        (mse_loss, 1),
        (smooth_l1_loss, 1),
        (l1_loss, 1),
        (lambda outputs, targets: (outputs - targets).pow(2).mean(), 1),
        (lambda outputs, targets: (targets - outputs).abs().mean(), 1),
        (lambda outputs, targets: mse_loss(outputs[:, 0], targets), 0),
        (lambda outputs, targets: (outputs - targets[:, None]).pow(2).mean(), 0),
        (lambda outputs, targets: (outputs - outputs.t()).pow(2).mean(), 0),
        (lambda outputs, targets: (outputs - targets.mean()).abs().mean(), 0),
        (lambda outputs, targets: mse_loss(outputs[:1], targets[:1]), 0),
        (lambda outputs, targets: (outputs.flatten() - outputs + targets).mean(), 1),
        (lambda outputs, targets: (outputs[:, 0] - outputs[:, 0, None] + targets).mean(), 0),
    ],
    ids=[
        *("mse", "smooth", "l1", "squares", "sizes", "squeezed", "stretched", "both", "a mean", "one"),
        *("a row and a column", "a row made a column"),
    ],
)
def test_outputs_that_meet_all_targets(loss, crossed):
    """Of equal shapes each meets its own; of two outputs all pairs are compared on purpose."""
    outputs, targets = torch.nn.Linear(3, 1)(torch.randn(6, 3)), torch.randn(6)

    assert scores_given(loss(outputs, targets), LossCalls()).crossed == crossed


@pytest.mark.parametrize(
    ("of", "unnormalised"),
    [
        (lambda logits: logits, 1),
        (lambda logits: log_softmax(logits, 1), 0),
        (lambda logits: log_softmax(logits.bfloat16(), 1), 0),
        (lambda logits: (logits.softmax(1) + 1e-8).log(), 0),
        (lambda logits: logits[..., None].expand(-1, -1, 2), 1),
        (lambda logits: log_softmax(logits, 1)[..., None].expand(-1, -1, 2), 0),
    ],
    ids=["logits", "logarithms", "bf16", "a logarithm", "of sequences", "logarithms of sequences"],
)
def test_what_nll_loss_is_given(of, unnormalised):
    """Logarithms of probabilities, by whatever way."""
    scores = of(torch.randn(6, 3, requires_grad=True))
    loss = nll_loss(scores, torch.zeros(6, *scores.shape[2:], dtype=torch.long))

    assert scores_given(loss, LossCalls()).unnormalised == unnormalised


@pytest.mark.parametrize(
    ("targets", "masked", "outside"),
    [
        ([0.0, 1.0, 0.3], False, 0),
        ([1.0, 2.0, 1.0], False, 1),
        ([-1.0, 1.0, 1.0], False, 1),
        ([-1.0, 1.0, 0.0], True, 0),
    ],
)
def test_targets_that_are_no_probabilities(targets, masked, outside):
    """Those that the loss leaves out may be anything."""
    scores, targets = torch.nn.Linear(3, 1)(torch.randn(3, 3))[:, 0], torch.tensor(targets)
    entropies = binary_cross_entropy_with_logits(scores, targets, reduction="none")
    loss = (entropies * (targets >= 0)).sum() if masked else entropies.mean()

    assert scores_given(loss, LossCalls()).outside == outside
    loss.backward()  # the graph is still there


@pytest.mark.parametrize(
    ("output", "loss", "targets", "told"),
    [
        (lambda x: x.tanh(), mse_loss, (0.0, 5.0), "MseLoss of outputs that reach -1 to 1, and targets from 0 to 5"),
        (lambda x: normalize(x) @ normalize(x + 1).t(), mse_loss, (1.0, 5.0), "outputs that reach -1 to 1"),
        (lambda x: (normalize(x) * normalize(x + 1)).sum(1), smooth_l1_loss, (1.0, 5.0), "reach -1 to 1"),
        (lambda x: cosine_similarity(x, x + 1).bfloat16(), mse_loss, (1.0, 5.0), "reach -1 to 1"),
        (lambda x: torch.cat([x.tanh(), 2 * x.sigmoid()], 1), mse_loss, (3.0, 5.0), "outputs that reach -1 to 2"),
        (lambda x: torch.cat([x.tanh(), x], 1), mse_loss, (3.0, 5.0), ""),
        (lambda x: -3 * x.sigmoid().squeeze(), mse_loss, (0.0, 5.0), "MseLoss of outputs that reach -3 to 0"),
        (lambda x: x.relu(), mse_loss, (-5.0, 0.0), "MseLoss of outputs that reach 0 to inf"),
        (lambda x: x.sigmoid(), lambda out, wanted: mse_loss(wanted, out), (2.0, 5.0), "outputs that reach 0 to 1"),
        (lambda x: x.tanh(), lambda out, wanted: (out - wanted).pow(2).mean(), (0.0, 5.0), "Pow of outputs that reach"),
        (lambda x: x.tanh(), lambda out, wanted: (wanted - out).abs().mean(), (0.0, 5.0), "and targets from 0 to 5"),
        (lambda x: x.tanh(), lambda out, wanted: (wanted - out).abs().mean(), (-1.0, 1.0), ""),
        (lambda x: x.tanh(), mse_loss, (-1.0, 1.0), ""),
        (lambda x: x.tanh(), mse_loss, (-1.0, 1.5), ""),
        (lambda x: 5 * x.tanh(), mse_loss, (0.0, 5.0), ""),
        (lambda x: 2 + 5 * x.sigmoid(), mse_loss, (2.0, 7.0), ""),
        (lambda x: 0.3 * x @ x.t(), mse_loss, (0.0, 5.0), ""),
        (lambda x: x.tanh() * x.exp(), mse_loss, (0.0, 5.0), ""),
        (
            lambda x: x.tanh(),
            lambda out, wanted: (mse_loss(out, wanted, reduction="none") * (wanted <= 1)).sum(),
            (0.0, 5.0),
            "",
        ),
    ],
    ids=[
        *("tanh", "cosines", "pairs", "similarity", "two parts", "of one nobody knows"),
        *("scaled", "relu", "exchanged"),
        *("squares", "l1", "l1 within", "within", "few outside"),
        *("scaled to them", "moved", "products", "a learned factor", "left out"),
    ],
)
def test_targets_out_of_reach(output, loss, targets, told):
    """By the last operation of the outputs, and factors of it; those that the loss leaves out may be anything."""
    torch.manual_seed(0)
    outputs = output(torch.randn(6, 8, requires_grad=True))
    wanted = torch.linspace(*targets, outputs.numel()).view_as(outputs).to(outputs.dtype)
    found = scores_given(loss(outputs, wanted), LossCalls())

    assert [told in words for words in found.unreached] == [True] * bool(told)


@pytest.mark.parametrize(("scale", "flat"), [(0.05, 1), (1.0, 0), (2.0, 0), (20.0, 0)])
def test_a_softmax_of_cosines_is_not_flat(scale, flat):
    """Whatever is learned; a temperature of 1 is in use with many rows."""
    one, other = torch.randn(6, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)
    cosines = normalize(one) @ normalize(other).t()
    scaled = (scale * normalize(one)) @ normalize(other).t()  # vectors of one length, which is not 1
    for scores in (cosines * scale, cosines / (1 / scale), scaled):
        assert scores_given(cross_entropy(scores, torch.arange(6)), LossCalls()).flat == flat
    assert not scores_given(cross_entropy((0.01 * normalize(one)) @ other.t(), torch.arange(6)), LossCalls()).flat


@pytest.mark.parametrize(
    ("over", "width", "places", "told"),
    [
        (lambda scores: log_softmax(scores, dim=1), 9, 20, 1),
        (lambda scores: log_softmax(scores, dim=-1), 9, 20, 0),
        (lambda scores: log_softmax(scores.transpose(1, 2), dim=1), 9, 20, 0),
        (lambda scores: log_softmax(scores.transpose(1, 2), dim=1), 9, 5, 0),
        (lambda scores: log_softmax(scores.transpose(1, 2), dim=1), 8, 5, 0),
        (lambda scores: log_softmax(scores, dim=1), 2, 20, 0),
    ],
    ids=[
        "positions",
        "tokens",
        "tokens second",
        "tokens second, of the longest rows",
        "tokens without one for the mask",
        "ends of a span",
    ],
)
def test_scores_of_the_vocabulary_are_normalised_over_it(over, width, places, told):
    """A model reads nine tokens; which of five positions an answer begins and ends at is no token."""
    read = torch.nn.Embedding(9, 4)(torch.randint(9, (2, 5))) + torch.nn.Embedding(places, 4)(torch.arange(5))
    scores = torch.nn.Linear(4, width)(read)

    assert scores_given(-over(scores).mean(), LossCalls()).over_positions == told


@pytest.mark.parametrize(
    ("second", "again"),
    [(lambda scores: scores, 1), (lambda scores: scores.t(), 0), (lambda scores: scores[:1], 0)],
    ids=["the same direction", "the other one", "one row"],
)
def test_a_symmetric_loss_has_two_directions(second, again):
    """Each counts once."""
    torch.manual_seed(0)
    scores = torch.randn(6, 8, requires_grad=True) @ torch.randn(8, 6)
    part = second(scores)
    loss = cross_entropy(scores, torch.arange(6)) + cross_entropy(part, torch.arange(len(part)))
    assert scores_given(loss, LossCalls()).again == again


def views(texts, order, halves):
    """The losses of texts that are encoded twice, in this order of the batch; as two halves, or side by side."""
    torch.manual_seed(0)
    encoded = torch.nn.Embedding(30, 8)(texts[order]).mean(dim=1)
    one, other = encoded.chunk(2) if halves else (encoded[0::2], encoded[1::2])
    return cross_entropy(one @ other.t(), torch.arange(len(one)))


@pytest.mark.parametrize(
    ("rows", "order", "halves", "told"),
    [
        (8, [*range(8), *range(8)], True, 0),
        (8, [*range(8), *range(8)], False, 1),
        (8, [at // 2 for at in range(16)], False, 0),
        (8, [at // 2 for at in range(16)], True, 1),
        (16, [*range(16)], True, 0),
        (4, [*range(4), *range(4)], False, 0),
    ],
    ids=["halves", "halves as pairs", "pairs", "pairs as halves", "no copies", "few rows"],
)
def test_a_texts_copy_is_its_positive(rows, order, halves, told):
    """Wherever it lies in the batch."""
    texts = torch.arange(rows)[:, None] + torch.arange(5)
    assert scores_given(views(texts, order, halves), LossCalls()).mispaired == told


@pytest.mark.parametrize(
    ("divided", "told"), [((2.0, 2.0), False), ((2.0, 1.0), True), ((1.0, 2.0), True)], ids=["both", "one", "the other"]
)
def test_a_temperature_that_softens_one_side_of_a_divergence(divided, told):
    """By the logits of both, that are still there, among others; without those nobody can tell. In fp32."""
    torch.manual_seed(0)
    others = torch.empty(4, 6, 50, device="meta"), torch.zeros(4, 6, 50).to_sparse(), torch.zeros(4, 6, 50)
    student, teacher = torch.randn(4, 6, 50, requires_grad=True), 2 * torch.randn(4, 6, 50)
    given = [(student / divided[0]).log_softmax(-1), (teacher / divided[1]).softmax(-1)]
    calls, later = LossCalls(), LossCalls()
    calls.called("kl_div", *given)
    del teacher
    later.called("kl_div", *given)

    assert (calls.softened, later.softened, len(others)) == (told, False, 3)


@pytest.mark.parametrize(("learns", "told"), [("input", 0), ("target", 1), ("both", 0)])
def test_a_divergence_whose_target_alone_learns(learns, told):
    """Student and teacher are exchanged; a mixture of both learns, too, as in GKD. In fp32."""
    one, other = torch.randn(4, 6, 50), torch.randn(4, 6, 50)
    one.requires_grad_(learns in ("input", "both"))
    other.requires_grad_(learns in ("target", "both"))
    calls = LossCalls()
    calls.called("kl_div", one.log_softmax(-1), other.softmax(-1))

    assert scores_given(one.sum() + other.sum(), calls).reversed == told


@pytest.mark.parametrize(
    ("weights", "told"),
    [([0.5, 1.0, 4.0], 0), ([4.0, 1.0, 0.5], 1), ([1.0, 1.0, 1.0], 0), ([2.0, 0.0, 1.0], 0), (None, 0)],
    ids=["rarer, heavier", "the other way round", "alike", "one is left out", "no weights"],
)
def test_the_most_frequent_class_has_not_the_largest_weight(weights, told):
    """Of 16 labels that are counted, and of classes of which one is three times as frequent as another. In fp32."""
    labels = torch.tensor([0] * 10 + [1] * 8 + [2] * 2)
    labels = labels if weights != [2.0, 0.0, 1.0] else labels[:18].clamp(max=1)
    scores = torch.randn(len(labels), 3, requires_grad=True)
    held = None if weights is None else torch.tensor(weights)
    loss, beside = (cross_entropy(scores, labels, weight=held, ignore_index=at) for at in (-100, 0))

    assert scores_given(loss, LossCalls()).weighed_up == told
    assert not scores_given(beside, LossCalls()).weighed_up  # too few are left


@pytest.mark.parametrize(
    ("scale", "changed", "told"),
    [(20.0, {}, 0), (1e6, {}, 1), (1e6, {"ignore_index": 3}, 0), (float("inf"), {}, 0)],
    ids=["a temperature of 0.05", "exponentiated twice", "all ignored", "without a number"],
)
@pytest.mark.parametrize("shape", [(8,), (8, 2)], ids=["rows", "positions"])
def test_a_cross_entropy_that_is_far_above_that_of_a_guess(shape, scale, changed, told):
    """As of cosines that the exponential of a temperature's inverse multiplies. In fp32."""
    torch.manual_seed(0)
    cosines = (torch.rand(8, 5, *shape[1:]) * 2 - 1).requires_grad_()
    targets = torch.full(shape, 3)
    with Largest() as seen:
        found = scores_given(loss := cross_entropy(scale * cosines, targets, **changed), LossCalls())

    assert (found.far_off, loss.requires_grad, seen.size > 0) == (told, True, True)


def _fields(out: torch.Tensor, target: torch.Tensor, *, second: int) -> torch.Tensor:
    """The mean of a loss of the first three parts, and of one of three parts from here on."""
    return sum(mse_loss(out[:, at : at + 3], target[:, at : at + 3]) for at in (0, second)) / 2


def _squares(out: torch.Tensor, target: torch.Tensor, second: int) -> torch.Tensor:
    """The same, of parts of the squares."""
    squares = (target - out.tanh()) ** 2
    return squares[:, :3].mean() + squares[:, second:].mean()


def _starts(out: torch.Tensor, ends: int) -> torch.Tensor:
    """The loss of an answer's first position, and of another one by this part of the scores."""
    scores = [part.squeeze(-1) for part in out.split(1, dim=-1)]
    return cross_entropy(scores[0], torch.tensor([1, 2])) + cross_entropy(scores[ends], torch.tensor([3, 4]))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: _fields(torch.nn.Conv2d(2, 6, 1)(torch.randn(4, 2, 5, 5)), torch.randn(4, 6, 5, 5), second=3), 0),
        (lambda: _fields(torch.nn.Conv2d(2, 6, 1)(torch.randn(4, 2, 5, 5)), torch.randn(4, 6, 5, 5), second=0), 3),
        (lambda: _squares(torch.nn.Linear(2, 6)(torch.randn(4, 2)), torch.randn(4, 6), second=-3), 0),
        (lambda: _squares(torch.nn.Linear(2, 6)(torch.randn(4, 2)), torch.randn(4, 6), second=-2), 0),
        (lambda: _squares(torch.nn.Linear(2, 6)(torch.randn(4, 2)), torch.randn(4, 6), second=4), 0),
        (lambda: _squares(torch.nn.Linear(2, 6)(torch.randn(4, 2)), torch.randn(4, 6), second=0), 0),
        (lambda: torch.nn.Linear(2, 6)(torch.randn(4, 2)).square()[:, 3:].mean(), 3),
        (lambda: _starts(torch.nn.Linear(8, 2)(torch.randn(2, 7, 8)), ends=1), 0),
        (lambda: _starts(torch.nn.Linear(8, 2)(torch.randn(2, 7, 8)), ends=0), 1),
        (lambda: torch.nn.Linear(8, 4)(torch.randn(6, 8))[:, :1].relu().mean(), 0),
        (lambda: torch.nn.Linear(8, 4)(torch.randn(6, 8)).gather(1, torch.zeros(6, 1, dtype=torch.long)).mean(), 0),
        (lambda: torch.nn.Linear(8, 40)(torch.randn(6, 8))[:, 1:].square().mean(), 0),
    ],
    ids=[
        "both fields",
        "one field twice",
        "both squares",
        "one is left out",
        "another one",
        "all squares",
        "half of the squares",
        "starts and ends",
        "starts twice",
        "a relu",
        "actions taken",
        "one of forty",
    ],
)
def test_parts_of_the_output_that_no_term_depends_on(made, told):
    """Left out by the loss itself, and not by one batch's numbers. In fp32."""
    torch.manual_seed(0)
    assert scores_given(made(), LossCalls()).unread == told


class Largest(TorchDispatchMode):
    """Notes the largest tensor that is made in the block."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Look at what an operator makes, but for views of what it is given."""
        out = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_leaves(held) if isinstance(x, torch.Tensor)] for held in ((args, kwargs), out))
        known = {x.untyped_storage()._cdata for x in given}
        self.size = max([self.size, *(x.numel() for x in made if x.untyped_storage()._cdata not in known)])
        return out


def test_scores_over_a_large_vocabulary_are_not_copied_whole():
    """A copy of them in fp32 may be gigabytes of a card that the training fills."""
    classes = 2 * PART // 3
    logits = torch.randn(1, 4, classes, requires_grad=True) * 1
    each = Pass({"input_ids": IDS[:1], "attention_mask": MASK[:1]})
    each.returned((logits,))
    loss = cross_entropy(logits[0, :-1], LABELS[0, 1:])
    likelihoods = logits[:, :-1].log_softmax(dim=-1)
    targets = likelihoods.detach().exp()
    with Largest() as seen:
        found = loss_of(loss, [each])
        axes = normalised(likelihoods)
    made = seen.size
    with Largest() as seen:
        looked_at = used(targets)

    assert [entropy for _, entropy, _ in found.entropies] == [loss.grad_fn]
    assert axes == {2}
    assert looked_at.all()
    assert max(made, seen.size) <= PART < targets.numel()
