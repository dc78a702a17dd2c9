"""What to keep of a trajectory: one file a method."""

from pfge.collectors.averaging import EMA, SWA, AveragingCollector, RunningMean
from pfge.collectors.base import Collector, Restart
from pfge.collectors.stored import FGE, PFGE, Star
from pfge.collectors.stores import FolderStore, MemoryStore
from pfge.collectors.swag import SWAG

__all__ = [
    "EMA",
    "FGE",
    "PFGE",
    "SWA",
    "SWAG",
    "AveragingCollector",
    "Collector",
    "FolderStore",
    "MemoryStore",
    "Restart",
    "RunningMean",
    "Star",
]
