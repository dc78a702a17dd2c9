"""Members that are evaluated one after another until an example is answered confidently."""

from pfge.cascade.cascade import Cascade
from pfge.cascade.fitting import fit_cascade

__all__ = ["Cascade", "fit_cascade"]
