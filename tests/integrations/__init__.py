from pfge.lab.models.packages import import_torchvision

import_torchvision()  # lightning and transformers import it, too, and fail beside a torch of another build
