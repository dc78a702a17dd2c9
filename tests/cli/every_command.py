"""Every command, and what it is called with in the run folder of the fixture `folder`."""

from tests.lab.tiny import SETTINGS

RUN_SETTINGS = ("ensemble.methods=['PFGE']", "data.validation_from_test=true", "data.flip=true")
PFGE = "seed-1/ensembles/PFGE"
_SAME_RUN = ["--out", ".", *(part for setting in (*SETTINGS, *RUN_SETTINGS) for part in ("--set", setting))]

# A new command belongs into one of these three.
READING_ENSEMBLES = {
    "evaluate": [PFGE],
    "predict": [PFGE, "digit.png"],
    "export": [PFGE, "out.pt2", "--format", "torch"],
    "cascade": [PFGE],
    "compress": [PFGE, "small", "--max-kl", "1"],
    "views": [PFGE, "seen"],
}
READING_RUNS = {
    "diagnose": ["."],
    "connect": [".", "--pairs", "1", "--set", "connect.unit=iterations", "--set", "connect.length=1"],
    "landscape": [".", "--grid", "2", "--images", "50"],
    "formats": ["."],
}
WITHOUT_THE_CONFIG_OF_A_RUN = {
    "plan": ["--memory", "1MB", "--epochs", "40", "--model", "small_conv", "--classes", "10"],
    "compare": _SAME_RUN,
    "pretrain": _SAME_RUN,
    "status": ["."],
    "table": ["."],
    "report": ["."],
    "average": ["seed-1/w0.safetensors", "--out", "mean"],
    "pool": ["seed-1/w0.safetensors", "--out", "pool"],
    "verify": ["."],
}
READING = READING_ENSEMBLES | READING_RUNS
ALL = READING | WITHOUT_THE_CONFIG_OF_A_RUN

PLAN = ["plan", "--model", "resnet20", "--classes", "10", "--epochs", "40"]
