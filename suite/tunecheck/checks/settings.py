"""Numbers that published recipes and defaults of libraries place in a range."""

from tunecheck.core.check import Check, required
from tunecheck.core.evidence import SettingsGiven
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace

USUAL = {
    "lora_scale": (1 / 512, 64, "peft's default is 1, LoRA Without Regret has 32 at rank 1"),
    "dropout": (0, 0.8, "its paper drops half, AWD-LSTM 0.65 of a layer"),
    "label_smoothing": (0, 0.5, "Inception and the Transformer take 0.1"),
    "adam_rate": (0, 0.05, "T5 takes 1e-3, peft's IA3 8e-3, its prompt tuning 3e-2"),
    "adam_beta1": (0, 0.99, "torch takes 0.9, GANs 0 to 0.5"),
    "adam_beta2": (0.5, 1, "torch takes 0.999, GPT-3 0.95"),
    "adam_epsilon": (0, 0.01, "torch takes 1e-8, Rainbow 1.5e-4"),
    "weight_decay": (0, 2, "torch's AdamW takes 0.01, GPT-3 0.1, ViT 0.3, Grokking 1"),
    "momentum": (0, 0.999, "SGD with 0.9 and nnU-Net with 0.99"),
    "rates_by_depth": (0, 1, "ULMFiT, BEiT and MAE take lower rates for lower layers"),
    "neftune_noise_alpha": (0, 100, "its paper takes 5 to 15"),
    "preference_beta": (0, 2, "DPO, KTO and ORPO take 0.01 to 0.5, TRL 0.1"),
    "simpo_beta": (0.05, 50, "SimPO takes 2 to 10"),
}
"""Kind of a setting to the range in which it lies, wider than that of any recipe that we know, and to some of these."""


class SettingsUsual(Check):
    """Settings lie within the range that published recipes span."""

    needs = frozenset({"user_code"})
    without = (SettingsGiven, "nobody read the settings")
    convention = "a study may take a setting to its extremes"
    meaning = """A number has another meaning: a share that is kept, a percent, a temperature in place of a scale. Or
    two arguments are exchanged, or a digit is missing."""
    remedy = "Read what the library takes the argument for. Print it as the training has it."

    def judge(self, trace: Trace) -> Finding:
        settings = required(trace.one(SettingsGiven).settings, "no object declares a setting that has a usual range")
        problems = []
        for setting in settings:
            least, most, source = USUAL[setting.kind]
            if not least <= setting.value <= most:
                usual = f"usually {least:g} to {most:g}: {source}"
                problems.append(f"{setting.where} is {setting.value:g}, {usual}")
        return self.unless(problems, f"{len(settings)} settings are as usual", most=2)
