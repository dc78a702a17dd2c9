"""An ensemble's accuracy and calibration from one training run, in the memory of a few models.

The names here are what a training loop and a prediction need. The rest is in submodules that `import pfge`
makes available: `pfge.averages`, `pfge.calibration`, `pfge.collectors`, `pfge.compression`,
`pfge.connectivity`, `pfge.metrics`, `pfge.schedules`, `pfge.storage`, `pfge.tasks`, `pfge.views` and
`pfge.weights`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfge import averages as averages
    from pfge import calibration as calibration
    from pfge import collectors as collectors
    from pfge import compression as compression
    from pfge import connectivity as connectivity
    from pfge import metrics as metrics
    from pfge import schedules as schedules
    from pfge import storage as storage
    from pfge import tasks as tasks
    from pfge import views as views
    from pfge import weights as weights
    from pfge.batch_norm import refresh_batch_norm as refresh_batch_norm
    from pfge.cascade import Cascade as Cascade
    from pfge.cascade import fit_cascade as fit_cascade
    from pfge.collectors import EMA as EMA
    from pfge.collectors import FGE as FGE
    from pfge.collectors import PFGE as PFGE
    from pfge.collectors import SWA as SWA
    from pfge.collectors import SWAG as SWAG
    from pfge.collectors import Collector as Collector
    from pfge.collectors import Restart as Restart
    from pfge.collectors import Star as Star
    from pfge.compression import Bits as Bits
    from pfge.compression import Budget as Budget
    from pfge.compression import MaxLoss as MaxLoss
    from pfge.compression import compress as compress
    from pfge.ensemble import Ensemble as Ensemble
    from pfge.errors import PfgeError as PfgeError
    from pfge.schedules import Constant as Constant
    from pfge.schedules import CosineRestarts as CosineRestarts
    from pfge.schedules import Triangular as Triangular
    from pfge.storage import StorageError as StorageError
    from pfge.storage import load_checkpoint as load_checkpoint
    from pfge.storage import save_checkpoint as save_checkpoint
    from pfge.trajectory import Trajectory as Trajectory
    from pfge.trajectory import follow as follow
    from pfge.weights import Weights as Weights
    from pfge.weights import load_weights as load_weights

__version__ = "0.1.0"

# Each is imported when it is first asked for: torch takes a second, and help, completion and the message of a
# mistyped command need not wait for it.
_SUBMODULES = (
    "averages",
    "calibration",
    "collectors",
    "compression",
    "connectivity",
    "metrics",
    "schedules",
    "storage",
    "tasks",
    "views",
    "weights",
)
_PLACES = {
    "batch_norm": ("refresh_batch_norm",),
    "cascade": ("Cascade", "fit_cascade"),
    "collectors": ("EMA", "FGE", "PFGE", "SWA", "SWAG", "Collector", "Restart", "Star"),
    "compression": ("Bits", "Budget", "MaxLoss", "compress"),
    "ensemble": ("Ensemble",),
    "errors": ("PfgeError",),
    "schedules": ("Constant", "CosineRestarts", "Triangular"),
    "storage": ("StorageError", "load_checkpoint", "save_checkpoint"),
    "trajectory": ("Trajectory", "follow"),
    "weights": ("Weights", "load_weights"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted([*_SUBMODULES, *_PLACE_OF])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"pfge.{name}")
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'pfge' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"pfge.{_PLACE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
