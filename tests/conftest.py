import torch
from hypothesis import settings

# Fixed examples and no deadline: a slow or busy machine must not decide whether a test passes.
settings.register_profile("pfge", deadline=None, derandomize=True)
settings.load_profile("pfge")
torch.set_num_threads(1)  # the suite itself runs on every core
