"""The rows, the split and the windows of batches."""

from dataclasses import field

from tunecheck.core.frozen import Record


class DataSplit(Record):
    """The two splits, compared."""

    train_rows: int
    heldout_rows: int
    shared: tuple[str, ...]
    """Instructions of held-out rows that training contains, by text or by tokens."""
    misplaced: tuple[str, ...]
    """Rows of the fixed evaluations that are not of the split that they are evaluated as: "probe row 0"."""
    largest_token_id: int
    embedding_rows: int
    dataset: str
    dataset_sha256: str
    duplicates: dict[str, str] = field(default_factory=dict)
    """Each training row with the tokens of an earlier one, and the first such row: {"train:40": "train:0"}."""


class Window(Record):
    """The micro-batches that the model really received for one optimizer step, audited against the data set."""

    step: int
    digests: tuple[str, ...]
    """One digest a micro-batch, over token ids and labels."""
    rows: tuple[str, ...]
    """Identity of each row in the data set ("train:17", "canary", or "?" when it is none of them).

    Of rows with the same tokens it is the prescribed one, if that is among them, else the first.
    """
    expected_rows: tuple[str, ...]
    """The rows that the seed and the step prescribe."""
    supervised_tokens: int
    expected_supervised_tokens: int
    tokens: int
    """Those that are no padding."""
    random_state: str
    """Digest of the random state that the step's dropout will draw from."""
    problems: dict[str, str]
    """Kind of problem to its first example: double BOS, answer lost, padding supervised, end token missing, ..."""
    inputs: dict[str, str] = field(default_factory=dict)
    """What is wrong with attention mask and positions, each with its first row."""


class TokensReplaced(Record):
    """Tokens that the model read in a pass of this step, and that none of its batches has."""

    step: int
    read: str
    """Beginning of the first row that differs, decoded."""
