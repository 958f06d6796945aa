"""Which modules are peft's, told without importing peft: it brings transformers and bitsandbytes, 4 s of a processor.

A model of which nobody has imported peft has none of its layers, and a plain training that is watched need not wait.
"""

import sys
from typing import Any


def adapted_layers(model: Any) -> dict[str, Any]:
    """Return the layers of `model` that hold an adapter of any kind of peft's, by their names."""
    peft: Any = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None:
        return {}
    return {name: module for name, module in model.named_modules() if isinstance(module, peft.BaseTunerLayer)}
