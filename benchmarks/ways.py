"""An ensemble in the files that would be shipped, and the ways to predict with them."""

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from pfge import Cascade, Ensemble
from pfge.compression import Bits, PackSettings, compress
from pfge.export import export_onnx
from pfge.weights import load_weights

Predict = Callable[[], Tensor]
LIBRARIES = ["onnxruntime", "pfge.export", "pfge.lab.experiments.compare"]


@dataclass(frozen=True)
class Shipped:
    """Where the files are, and what else predicting takes.

    Args:
        folder: Of the files.
        build_model: Returns a new model, also in another process.
        batch_size: How many inputs are predicted at once.
    """

    folder: Path
    build_model: Callable[[], nn.Module]
    batch_size: int

    def write(self, ensemble: Ensemble, cascade: Cascade, inputs: Tensor) -> None:
        """Write all files."""
        packed = compress(ensemble, Bits(3), settings=PackSettings(small_bits=16))
        ensemble.save(self.folder / "float32")
        packed.save(self.folder / "packed")
        cascade.save(self.folder / "cascade.json")
        export_onnx(packed, self.folder / "packed.onnx", inputs[:4])
        export_onnx(packed, self.folder / "side-by-side.onnx", inputs[:4], layout="side by side")
        for number, member in enumerate(ensemble.members):
            alone = ensemble.last(1).with_members([member])
            export_onnx(alone, self.folder / f"member-{number}.onnx", inputs[:4], layout="side by side")
        save_file({"inputs": inputs}, self.folder / "inputs.safetensors")

    def inputs(self) -> list[Tensor]:
        """Return the batches."""
        return list(load_file(self.folder / "inputs.safetensors")["inputs"].split(self.batch_size))

    def ensemble(self, form: str) -> Ensemble:
        """Open the ensemble, float32 or packed."""
        return Ensemble.load(self.folder / form, self.build_model)

    def modules(self, count: int | None = None) -> list[nn.Module]:
        """Return a module of its own for each member, as most programs have."""
        modules = []
        for member in self.ensemble("float32").members[:count]:
            module = self.build_model().eval().requires_grad_(False)
            load_weights(module, member)
            modules.append(module)
        return modules


def one_model(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by the first member alone."""
    return _loop(shipped.modules(1), inputs)


def loop(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction batch by batch, all modules resident."""
    return _loop(shipped.modules(), inputs)


def _loop(modules: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Predict:
    @torch.no_grad()
    def predict() -> Tensor:
        return torch.cat([torch.stack([m(x).softmax(dim=1) for m in modules]).mean(0) for x in inputs])

    return predict


def by_vmap(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by all members at once, stacked."""
    # It has no rules for channels-last memory.
    modules = [module.to(memory_format=torch.contiguous_format) for module in shipped.modules()]  # type: ignore[call-overload]
    skeleton = modules[0]
    parameters, buffers = stack_module_state(modules)

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(skeleton, (parameters, buffers), (x,))
        return logits.softmax(dim=1)

    @torch.no_grad()
    def predict() -> Tensor:
        return torch.cat([vmap(one, in_dims=(0, 0, None))(parameters, buffers, x).mean(0) for x in inputs])

    return predict


def streaming(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction member by member, each read from disk into one model."""
    ensemble = shipped.ensemble("float32")
    return lambda: ensemble.predict_batches(inputs)


def packed(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction member by member, each unpacked into one model."""
    ensemble = shipped.ensemble("packed")
    return lambda: ensemble.predict_batches(inputs)


def cascade(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by packed members until an example is sure."""
    ensemble, rule = shipped.ensemble("packed"), Cascade.load(shipped.folder / "cascade.json")
    return lambda: rule.predict_batches(ensemble, inputs).probabilities


def onnx_loop(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by ONNX Runtime in a loop, which unpacks packed members itself."""
    return _by_onnx_runtime([shipped.folder / "packed.onnx"], inputs)


def onnx_side_by_side(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by ONNX Runtime, all members in one graph and unpacked when it is opened."""
    return _by_onnx_runtime([shipped.folder / "side-by-side.onnx"], inputs)


def onnx_separate(shipped: Shipped, inputs: Sequence[Tensor]) -> Predict:
    """Return a prediction by ONNX Runtime, one file of float32 a member, one after another."""
    return _by_onnx_runtime(sorted(shipped.folder.glob("member-*.onnx")), inputs)


def _by_onnx_runtime(files: Sequence[Path], inputs: Sequence[Tensor]) -> Predict:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"]) for file in files
    ]

    def predict_batch(x: Tensor) -> Tensor:
        found = [torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0]) for session in sessions]
        return torch.stack(found).mean(dim=0) if len(found) > 1 else found[0]

    return lambda: torch.cat([predict_batch(x) for x in inputs])


Way = Callable[[Shipped, Sequence[Tensor]], Predict]


def peak_bytes(way: Way, shipped: Shipped, threads: int) -> int:
    """Return the most memory that a way took in a process of its own, beyond inputs and libraries."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    with context.Pool(1) as pool:
        return pool.apply(_measure_peak, (way, shipped, threads))


def _measure_peak(way: Way, shipped: Shipped, threads: int) -> int:
    torch.set_num_threads(threads)
    inputs = shipped.inputs()
    # Reads in the code of the libraries, and starts their threads.
    _loop([shipped.build_model().eval()], [inputs[0][:1]])()
    before = _largest_resident()
    way(shipped, inputs)()
    return _largest_resident() - before


def _largest_resident() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
