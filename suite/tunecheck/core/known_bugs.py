"""Bugs of libraries by the versions and cards that have them, without importing the libraries."""

import re

CUDNN_ATTENTION = "https://github.com/pytorch/pytorch/issues/196678"
_FIRST, _LAST = (2, 11), (2, 13)


def cudnn_attention_gives_nan(torch_version: str, compute_capability: str) -> bool:
    """Return whether cuDNN attention returns NaN gradients on this card with this torch.

    On compute capability 9.0 (H100, H200) the backward pass overflows where a mask is given, the length is 64 modulo
    128 and the scores are strongly negative; a regression of torch 2.11, present in 2.13. Later versions are not taken
    on trust: the forward probe runs that very case wherever cuDNN attention is left on.
    """
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    return found is not None and compute_capability == "9.0" and _FIRST <= (int(found[1]), int(found[2])) <= _LAST
