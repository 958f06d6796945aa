"""What every training child imports: loaded once into the fork server, so that a fresh child starts in milliseconds."""

import bitsandbytes  # noqa: F401 - safe only without a GPU: on one, its import initialises CUDA
import peft  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import suite.probes
import suite.runner.child
import suite.trainer.checkpoint
import suite.trainer.native  # noqa: F401 - brings torch
