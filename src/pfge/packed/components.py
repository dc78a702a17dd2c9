"""What members add to the base, as a few components that they share.

Members of one run lie on a path, so that their differences from the base are much alike: most of what they
add lies along a few directions. Members of one tensor are the rows of D, [members, numbers]. With the
eigenvectors V of D D^T, the rows of V^T D are orthogonal to each other, the first ones are the
largest, and D = V (V^T D). A component that is left out, or stored with an error, adds its square to that of
all members together, as V is orthonormal. So each component gets the bits that its size is worth.
"""

import torch
from torch import Tensor

MIX_TYPE = torch.float16  # its entries are about from -1 to 1


def find_components(deltas: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the mix, [members, count], and the components, [count, numbers], the largest first.

    Args:
        deltas: What each member adds, [members, numbers].
        count: How many components to keep, at most one for each member.
    """
    if not 1 <= count <= len(deltas):
        raise ValueError(f"{len(deltas)} members have 1 to {len(deltas)} components, got {count}")
    wide = deltas.double()
    vectors = torch.linalg.eigh(wide @ wide.T).eigenvectors.flip(1)[:, :count]
    # Either sign is an eigenvector; the largest entry is positive, so that all machines take the same.
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    vectors = vectors * torch.where(largest < 0, -1, 1)
    return vectors.to(MIX_TYPE), (vectors.T @ wide).float()


def keep_spread(mix: Tensor, components: Tensor, deltas: Tensor) -> Tensor:
    """Return a mix with larger differences, so that members differ from each other as much as they did.

    Components that are left out, and steps of least squared error, bring members nearer to each other. What
    an ensemble gains comes from their differences, while the errors of many members average out. What all
    members add alike, as the error of the base, is left as it is: next to it, their differences may be small,
    and a factor that restores these would tear it apart.

    Args:
        mix: As from `find_components`.
        components: As they are stored.
        deltas: What each member adds.
    """
    before, after = ((rows - rows.mean(dim=0)).norm().item() for rows in (deltas, mix.float() @ components))
    factor = before / after if after > 0 else 1.0
    alike = mix.float().mean(dim=0)
    return (alike + factor * (mix.float() - alike)).to(MIX_TYPE)


def mix_size(members: int, components: int) -> int:
    """Return the bytes of a mix."""
    return members * components * MIX_TYPE.itemsize
