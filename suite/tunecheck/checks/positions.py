"""At which positions a loss pulls: whatever it is, not at padding, and not towards the token that is read there."""

from tunecheck.core.check import Check, worst_of
from tunecheck.core.evidence import PositionGradients
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace

FURTHER_AHEAD = "a head of its own may be to predict a further token, as where several are predicted at once"


class NoLossOnPadding(Check):
    """No gradient comes out of a position that is padding, but where one of all positions is to be chosen."""

    premises = frozenset()
    applies_to = frozenset({"watched"})
    meaning = (
        "padding has labels, a term of the loss (smoothing, a divergence) is not masked, a mean is taken over all "
        "positions, or the last position of a row that is padded on the right is taken for its last token"
    )
    remedy = (
        "mask each term of the loss and each mean by attention_mask; a row's last token is at attention_mask.sum(1) - 1"
    )

    max_share: float = 1e-3
    """Of the gradient's norm: exactly 0 where padding is left out, in every precision; 0.02 where one row of four has a
    single padded position with a label."""

    def judge(self, trace: Trace) -> Finding:
        padded = [seen for seen in trace.main.all(PositionGradients) if seen.padded]
        if not padded:
            return self.unjudged("no padded row was seen that the model is given with a mask", expected=True)
        worst = worst_of(padded, key=lambda seen: seen.padding_share)
        detail = f"step {worst.step}: {worst.padding_share:.2g} of the gradient is at {worst.padded} padded positions"
        return self.found(
            worst.padding_share <= self.max_share, detail, measured=worst.padding_share, limit=self.max_share
        )


class NoTargetLeakage(Check):
    """Positions are asked for tokens that they cannot read: not for their own, nor for a next one that they see."""

    premises = frozenset()
    applies_to = frozenset({"watched"})
    meaning = (
        "the loss is not shifted, or twice, a decoder is given its labels as its input, or the labels of masked tokens "
        "were taken after masking; or a mask that is not causal shows what is to be predicted: the model learns to "
        "copy, and its loss falls very fast"
    )
    remedy = (
        "shift labels against logits once; clone the labels before tokens are masked; pass is_causal=True, and look at "
        "what else reaches over positions (a mean, a convolution, a normalisation)"
    )

    max_share: float = 0.9
    """Of the positions whose next token is another: all of them where labels are not shifted, less than 0.05 else."""
    max_second_share: float = 0.5
    """Of the same positions: nearly all where labels are shifted twice, 0 else."""
    min_positions: int = 16
    """Positions below which a share says nothing."""
    max_seeing_share: float = 0.5
    """Of the rows whose next token was exchanged: none of a causal model, all where the mask is missing; experts with a
    capacity may leave another token out."""

    def judge(self, trace: Trace) -> Finding:
        steps = trace.main.all(PositionGradients)
        positions = sum(seen.raising for seen in steps)
        if positions < self.min_positions:
            return self.unjudged(
                f"{positions} positions were seen with tokens and logits of a vocabulary", expected=True
            )
        share = sum(seen.raising_own for seen in steps) / positions
        asked, seeing = (sum(getattr(seen, name) for seen in steps) for name in ("asked_for_next", "seeing_next"))
        if asked and seeing / asked > self.max_seeing_share:
            detail = f"in {seeing} of {asked} rows the scores change with the next token, which they are to predict"
            return self.found(False, detail, measured=seeing / asked, limit=self.max_seeing_share)
        if (second := sum(seen.raising_second for seen in steps) / positions) > self.max_second_share:
            detail = f"{second:.1%} of {positions} positions are asked for the token behind the next one"
            return self.found(False, detail, measured=second, limit=self.max_second_share, meant=FURTHER_AHEAD)
        detail = f"{share:.1%} of {positions} positions are asked for the token that they read"
        detail += f"; none of {asked} rows sees the next one" if asked and not seeing else ""
        return self.found(share <= self.max_share, detail, measured=share, limit=self.max_share)
