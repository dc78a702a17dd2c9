"""What to keep of a trajectory: the methods, and base classes for your own."""

from pfge.collectors.averaging import EMA, SWA, AveragingCollector, RunningMean
from pfge.collectors.base import Collector, Restart
from pfge.collectors.stored import FGE, PFGE, Star
from pfge.collectors.stores import FolderStore
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
    "Restart",
    "RunningMean",
    "Star",
]
