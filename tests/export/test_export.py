"""Exported files answer as the ensemble does, in ONNX Runtime and in torch.export."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pfge import Bits, Ensemble, compress
from pfge.calibration import CalibrateBy, Temperatures
from pfge.export import Exported, ExportError, export_onnx, export_torch
from pfge.export.ensemble_graph import (
    HALVINGS,
    TOLERANCE,
    ExampleInputs,
    difference_of,
    unpack_in_graph,
    write_checked,
)
from pfge.packed import PackedMembers, PackSettings, pack_members
from pfge.packed.codes import quantize
from pfge.packed.encode import TensorForm
from pfge.storage.record import InputSpec
from pfge.tasks import Classification, MultiLabel, Raw, Regression
from pfge.weights import count_bytes
from tests.export.exported_files import answer
from tests.packed.close_members import close_members
from tests.tasks import cases
from tests.tasks.fractions import Fractions
from tests.toys import make_batch, make_mlp

X = make_batch(1, size=3)[0]
OTHER = make_batch(2, size=11)[0]
BOTH: tuple[CalibrateBy, CalibrateBy] = ("pooled", "members")
HOT = Temperatures(1.7, (0.5, 1.0, 2.0), weights=(0.6, 0.1, 0.3))


FORMATS = {"e.onnx": export_onnx, "e.pt2": export_torch}
SPEC = InputSpec(classes=("cat", "dog", "ship"), mean=(0.5,), std=(0.25,), input_shape=(4,))


def named(*classes: str) -> InputSpec:
    return InputSpec(classes=classes)


@dataclass(frozen=True)
class Case:
    ensemble: Ensemble
    exported: Exported


@pytest.fixture(scope="module", params=FORMATS)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three members, one of whose tensors is the same in all."""
    members = close_members(3)
    for member in members:
        member["4.weight"] = members[0]["4.weight"]
    ensemble = Ensemble(members, make_mlp, temperatures=HOT, input_spec=SPEC)
    return Case(
        ensemble, FORMATS[request.param](ensemble, tmp_path_factory.mktemp("plain") / request.param, X)
    )


@pytest.fixture(scope="module", params=FORMATS)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three members on a base of 8 bits, with deltas of 3 bits and of 1."""
    widths = {"0.weight": 3, "4.weight": 1}
    members = pack_members(close_members(3), widths, PackSettings(group=5, small_bits=16))
    ensemble = Ensemble(members, make_mlp, temperatures=HOT)
    return Case(
        ensemble, FORMATS[request.param](ensemble, tmp_path_factory.mktemp("packed") / request.param, X)
    )


@pytest.mark.slow
def test_a_file_answers_the_weighted_mean_of_softmax_at_the_temperatures(plain: Case) -> None:
    # By hand: the mean of w_k softmax(logits / T_k), then softmax(log mean / T).
    model = make_mlp().eval()
    total = torch.zeros(11, 3)
    fitted = zip(plain.ensemble.members, (0.5, 1.0, 2.0), (0.6, 0.1, 0.3), strict=True)
    for member, temperature, weight in fitted:
        model.load_state_dict(member)
        total += weight * (model(OTHER) / temperature).softmax(dim=1).detach()
    expected = (total.log() / 1.7).softmax(dim=1)
    torch.testing.assert_close(answer(plain.exported.path, OTHER), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_an_export_is_one_file_and_a_report(plain: Case) -> None:
    file = plain.exported.path
    assert list(file.parent.iterdir()) == [file]
    assert plain.exported.bytes == file.stat().st_size
    assert not plain.exported.packed
    assert plain.exported.largest_difference < 1e-6


@pytest.mark.slow
def test_packed_members_answer_and_stay_packed(packed: Case) -> None:
    assert packed.exported.packed
    expected = packed.ensemble.predict(OTHER)
    torch.testing.assert_close(answer(packed.exported.path, OTHER), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["e.onnx"], indirect=True)
def test_the_numbers_in_an_onnx_file_are_the_packed_ones(packed: Case) -> None:
    stored = onnx.load(packed.exported.path).graph.initializer
    codes = [tensor for tensor in stored if tensor.data_type == onnx.TensorProto.UINT8]
    # 0.weight has 32 numbers and 4.weight 24: a base of a byte each, and 3 members of 3 bits and of 1 each.
    assert sorted(list(tensor.dims) for tensor in codes) == [[3, 3], [3, 12], [24], [32]]


@pytest.mark.parametrize("plain", ["e.onnx"], indirect=True)
def test_what_is_the_same_in_all_members_is_stored_once(plain: Case) -> None:
    shapes = [list(tensor.dims) for tensor in onnx.load(plain.exported.path).graph.initializer]
    assert [3, 8] in shapes
    assert [3, 3, 8] not in shapes
    assert [3, 8, 4] in shapes  # 0.weight, which differs


@pytest.mark.parametrize("plain", ["e.onnx"], indirect=True)
def test_the_first_dimension_is_called_batch(plain: Case) -> None:
    graph = onnx.load(plain.exported.path).graph
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("plain", ["e.onnx"], indirect=True)
def test_the_graph_holds_the_model_once(plain: Case) -> None:
    (loop,) = [node for node in onnx.load(plain.exported.path).graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    assert [node.op_type for node in body.node].count("Gemm") == 2  # its linear layers


@pytest.mark.parametrize("plain", ["e.onnx"], indirect=True)
def test_a_file_says_what_is_needed_to_use_it(plain: Case) -> None:
    kept = {e.key: json.loads(e.value) for e in onnx.load(plain.exported.path).metadata_props}
    assert kept == {
        "task": {"name": "Classification", "options": {"dim": 1, "ignore_index": None}},
        "classes": ["cat", "dog", "ship"],
        "mean": [0.5],
        "std": [0.25],
        "input_shape": [4],
    }


def test_class_names_must_be_as_many_as_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classes must name each of the model's 3 classes, got 1 names"):
        export_onnx(Ensemble(close_members(1), make_mlp, input_spec=named("cat")), tmp_path / "e.onnx", X)


@pytest.mark.parametrize("plain", ["e.pt2"], indirect=True)
def test_a_file_says_nothing_of_the_machine_it_was_made_on(plain: Case) -> None:
    program = torch.export.load(plain.exported.path)
    assert program.example_inputs is None
    assert str(Path.cwd()).encode() not in b"".join(
        ZipFile(plain.exported.path).read(name) for name in ZipFile(plain.exported.path).namelist()
    )


@pytest.mark.slow
def test_a_forward_pass_of_the_users_own_is_exported(tmp_path: Path) -> None:
    ensemble = Ensemble(close_members(2), make_mlp, forward=lambda model, x: 2 * model(x))
    export_torch(ensemble, tmp_path / "e.pt2", X[:1])  # an example of one, and yet any size
    torch.testing.assert_close(answer(tmp_path / "e.pt2", OTHER), ensemble.predict(OTHER))


@pytest.mark.parametrize("bits", range(1, 9))
@given(count=st.integers(1, 70), group=st.integers(1, 20), seed=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_unpacking_in_a_graph_is_that_of_the_library(bits: int, count: int, group: int, seed: int) -> None:
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    stored = quantize(numbers, bits, group)
    found = unpack_in_graph(stored.codes, stored.steps, HALVINGS, bits, group, count)
    assert torch.equal(found, stored.numbers())


# What cannot be


class _Unusual(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


def unusual(act: Callable[[Tensor], Tensor]) -> Ensemble:
    member = dict(_Unusual(act).state_dict())
    return Ensemble([member, {name: 2 * tensor for name, tensor in member.items()}], lambda: _Unusual(act))


@pytest.mark.slow
def test_an_operator_that_onnx_lacks_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "e.onnx").write_text("old")
    with pytest.raises(ExportError, match=r"as ONNX: it has no operator for \w+\.bessel_j0"):
        export_onnx(unusual(torch.special.bessel_j0), tmp_path / "e.onnx", X)
    assert (tmp_path / "e.onnx").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_model_that_looks_at_its_numbers_is_named_with_the_line(tmp_path: Path) -> None:
    def branch(x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(ExportError, match=r"as a graph: .*x\.sum\(\)\.item\(\) > 0"):
        export_torch(unusual(branch), tmp_path / "e.pt2", X)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [2e-4, float("nan")])
def test_a_file_that_answers_otherwise_is_not_kept(error: float, tmp_path: Path) -> None:
    ensemble = Ensemble(close_members(2), make_mlp)
    (tmp_path / "e.onnx").write_text("old")
    with pytest.raises(ExportError, match=r"predictions must be within 0\.0001 of the ensemble's"):
        write_checked(
            ensemble,
            ExampleInputs.of(ensemble, X, None),
            tmp_path / "e.onnx",
            lambda file: file.touch(),
            lambda _: lambda inputs: ensemble.predict(inputs.batch()) + error,
        )
    assert (tmp_path / "e.onnx").read_text() == "old"


@pytest.mark.parametrize(
    ("ensemble", "example", "expected"),
    [
        (Ensemble([], make_mlp), X, "exporting needs at least one member"),
        (Ensemble(close_members(1), make_mlp), X[0], r"a batch of inputs \[N, ...\], got \[4\]"),
        (
            Ensemble(close_members(1), make_mlp, task=Fractions()),
            X,
            r"must return numbers \[N\], got \[3, 3\]",
        ),
    ],
)
def test_what_is_no_ensemble_or_batch_is_refused(
    ensemble: Ensemble, example: Tensor, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=expected):
        export_torch(ensemble, tmp_path / "e.pt2", example)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.CASES)
def test_each_task_is_saved_loaded_compressed_and_exported(name: str, tmp_path: Path) -> None:
    case = cases.CASES[name]
    pooled, each = (
        case.ensemble().calibrated([(case.inputs, case.targets)], by=by).temperatures for by in BOTH
    )
    # Fixed noise has one variance, fitted for the members or for their mean.
    both = pooled if case.task.needs_calibration else Temperatures(pooled.pooled, each.members)
    original = case.ensemble().with_members(case.members(), temperatures=both)
    original.save(tmp_path / "saved")
    loaded = Ensemble.load(tmp_path / "saved", case.build)
    compress(loaded, Bits(8), settings=PackSettings(base_bits=None)).save(tmp_path / "compressed")
    small = Ensemble.load(tmp_path / "compressed", case.build)
    expected = original.predict(case.inputs)
    torch.testing.assert_close(small.predict(case.inputs), expected, rtol=0.1, atol=0.1)
    # A loop depends on the kind of pool, of which these two tasks have one each. Otherwise graphs differ by
    # task in their last operations only.
    in_every_way = name in ("rows", "predicted noise")
    ways: list[tuple[Ensemble, str, Any]] = [(small, "e.onnx", partial(export_onnx, layout="side by side"))]
    if in_every_way:
        ways = [
            (small, "e.onnx", export_onnx),
            (loaded, "e.onnx", export_onnx),
            (small, "e.pt2", export_torch),
        ]
    for ensemble, file, export in ways:
        export(ensemble, tmp_path / file, case.inputs[:2])
        found = answer(tmp_path / file, case.inputs)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, ensemble.predict(case.inputs).float(), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_task_of_ones_own_is_exported(tmp_path: Path) -> None:
    members = close_members(2)
    ensemble = Ensemble(members, make_mlp, task=Fractions(), forward=lambda model, x: model(x)[:, 0])
    export_onnx(ensemble, tmp_path / "e.onnx", X)
    torch.testing.assert_close(answer(tmp_path / "e.onnx", OTHER), ensemble.predict(OTHER), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("members", [None, (2.0, 1.0, 0.5)], ids=["pooled", "each"])
@pytest.mark.parametrize(
    ("file", "options"), [("e.onnx", {}), ("e.onnx", {"layout": "side by side"}), ("e.pt2", {})]
)
def test_a_sure_label_keeps_its_doubt_until_the_temperature_is_applied(
    file: str, options: dict[str, Any], members: tuple[float, ...] | None, tmp_path: Path
) -> None:
    weights = [{"weight": torch.tensor([[1 + 0.01 * number], [-1.0]])} for number in range(3)]
    ensemble = Ensemble(
        weights,
        lambda: nn.Linear(1, 2, bias=False),
        task=MultiLabel(),
        temperatures=Temperatures((4.0, 4.0), members),
    )
    FORMATS[file](ensemble, tmp_path / file, torch.randn(4, 1), **options)
    sure = torch.tensor([[18.0], [22.0]])  # 1 - p is 0 in float32
    found = answer(tmp_path / file, sure)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ensemble.predict(sure).float(), rtol=0, atol=1e-6)
    if members is None:
        # By hand: the mean p of sigmoid((1 + k / 100) x), then the fourth root of its odds.
        doubt = (-sure.double() * torch.tensor([1.0, 1.01, 1.02])).sigmoid().mean(dim=1)
        expected = 1 / (1 + (doubt / (1 - doubt)) ** 0.25)
        torch.testing.assert_close(found[:, 0], expected.float(), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_large_numbers_are_compared_relative_to_their_size(tmp_path: Path) -> None:
    case = cases.CASES["fixed noise"]
    members = [{name: 1e4 * tensor for name, tensor in member.items()} for member in case.members()]
    ensemble = Ensemble(members, case.build, task=case.task)
    exported = export_onnx(ensemble, tmp_path / "e.onnx", case.inputs)
    assert exported.largest_difference < 1e-5
    found, expected = answer(exported.path, case.inputs), ensemble.predict(case.inputs)
    torch.testing.assert_close(found[..., 0], expected[..., 0], rtol=1e-6, atol=1e-2)
    # Where members are close, the variance between them has fewer digits than the members.
    torch.testing.assert_close(found[..., 1], expected[..., 1], rtol=1e-4, atol=1.0)


def test_the_variance_of_close_members_may_differ_as_rounding_of_their_means_changes_it() -> None:
    members = torch.tensor([100_000.0, 100_200.0])
    rounded = members + torch.tensor([0.03, -0.03])  # four times the distance of two float32 numbers there

    def pooled(numbers: torch.Tensor) -> torch.Tensor:
        return torch.stack([numbers.mean(), 1 + numbers.var(correction=0)])[None]

    task = Regression()
    expected = pooled(members)
    assert (pooled(rounded)[0, 1] / expected[0, 1] - 1).abs() > TOLERANCE
    assert difference_of(task, pooled(rounded), expected) < TOLERANCE
    assert difference_of(task, expected * torch.tensor([1.0, 1.02]), expected) > TOLERANCE
    assert difference_of(task, expected * torch.tensor([1.001, 1.0]), expected) > TOLERANCE


@pytest.mark.slow
def test_names_are_those_of_classes_and_labels(tmp_path: Path) -> None:
    masks, numbers = cases.CASES["masks"], cases.CASES["fixed noise"]

    def export(case: cases.Case, *names: str) -> None:
        ensemble = case.ensemble().with_record(input_spec=named(*names))
        export_onnx(ensemble, tmp_path / "e.onnx", case.inputs)

    export(masks, "road", "sky", "tree")
    with pytest.raises(ValueError, match="each of the model's 3 classes, got 2 names"):
        export(masks, "road", "sky")
    with pytest.raises(
        ValueError, match=r"must be None for Regression\(noise='fixed'\), .*; leave classes out"
    ):
        export(numbers, "one", "two")


# Several inputs


class _Texts(nn.Module):
    """Logits of each token, or of each text, by its words and where they are."""

    def __init__(self, *, each: bool) -> None:
        super().__init__()
        self.words, self.head, self._each = nn.Embedding(10, 4), nn.Linear(4, 3), each

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.words(input_ids) * attention_mask[..., None]
        if not self._each:
            hidden = hidden.sum(dim=1) / attention_mask.sum(dim=1, keepdim=True)
        return {"logits": self.head(hidden.tanh())}


def texts(*, each: bool) -> Ensemble:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        members = [dict(_Texts(each=each).state_dict()) for _ in range(3)]
    task = Classification(dim=-1) if each else Classification()
    return Ensemble(members, lambda: _Texts(each=each), task=task)


def batch_of(examples: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(examples)
    ids = torch.randint(0, 10, (examples, length), generator=generator)
    return {"input_ids": ids, "attention_mask": (ids != 3).float()}


LENGTHS = {"input_ids": {1: "length"}, "attention_mask": {1: "length"}}


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True], ids=["texts", "tokens"])
@pytest.mark.parametrize("file", FORMATS)
def test_dict_batches_of_any_length_are_exported(file: str, each: bool, tmp_path: Path) -> None:
    ensemble, other = texts(each=each), batch_of(5, 9)
    FORMATS[file](ensemble, tmp_path / file, batch_of(2, 6), axes=LENGTHS)
    if file == "e.onnx":
        session = onnxruntime.InferenceSession(tmp_path / file)
        shapes = {value.name: value.shape for value in session.get_inputs()}
        assert shapes == {name: ["batch", "length"] for name in other}
        (array,) = session.run(None, {name: tensor.numpy() for name, tensor in other.items()})
        found = torch.from_numpy(array)
    else:
        found = torch.export.load(tmp_path / file).module()(**other)
    torch.testing.assert_close(found, ensemble.predict(other), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_arguments_by_place_are_exported(tmp_path: Path) -> None:
    ensemble, example, other = texts(each=False), batch_of(2, 6), batch_of(5, 6)
    export_onnx(ensemble, tmp_path / "e.onnx", [tuple(example.values())])
    session = onnxruntime.InferenceSession(tmp_path / "e.onnx")
    fed = {f"inputs_{place}": tensor.numpy() for place, tensor in enumerate(other.values())}
    found = torch.from_numpy(session.run(None, fed)[0])
    torch.testing.assert_close(found, ensemble.predict(other), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "axes", "expected"),
    [
        ({"input_ids": torch.zeros(3, 6, dtype=torch.int64)}, None, r"same number of examples, got \[2, 3\]"),
        ({"input_ids": "words"}, None, "input_ids of the example must be a tensor, got str"),
        ({}, {"ids": {1: "length"}}, "axes must name inputs, input_ids, attention_mask, got 'ids'"),
        ({}, {"input_ids": {2: "length"}}, "axes of input_ids must be dimensions from 1 to 1, got 2"),
    ],
)
def test_inputs_that_cannot_be_are_refused(
    change: dict[str, Any], axes: Any, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=expected):
        export_torch(texts(each=False), tmp_path / "e.pt2", batch_of(2, 6) | change, axes=axes)


def mixed_members() -> PackedMembers:
    """Three members as two components of one tensor and one of the other."""
    forms = {
        "0.weight": TensorForm((4, 2), PackSettings(6, None)),
        "4.weight": TensorForm((3,), PackSettings(8, 5)),
    }
    return pack_members(close_members(3), forms, PackSettings(small_bits=8))


@pytest.mark.slow
@pytest.mark.parametrize("file", FORMATS)
def test_components_are_mixed_in_the_graph(file: str, tmp_path: Path) -> None:
    ensemble = Ensemble(mixed_members(), make_mlp, temperatures=HOT)
    exported = FORMATS[file](ensemble, tmp_path / file, X)
    assert exported.packed
    torch.testing.assert_close(answer(exported.path, OTHER), ensemble.predict(OTHER), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("members", ["plain", "packed", "mixed"])
def test_members_side_by_side_answer_as_in_a_loop(members: str, tmp_path: Path) -> None:
    kinds = {
        "plain": lambda: close_members(3),
        "packed": lambda: pack_members(close_members(3), 3, PackSettings(group=5, small_bits=16)),
        "mixed": mixed_members,
    }
    ensemble = Ensemble(kinds[members](), make_mlp, temperatures=HOT)
    exported = export_onnx(ensemble, tmp_path / "e.onnx", X, layout="side by side")
    assert exported.layout == "side by side"
    assert exported.packed == (members != "plain")
    torch.testing.assert_close(answer(exported.path, OTHER), ensemble.predict(OTHER), rtol=0, atol=1e-6)
    kinds_of_nodes = [node.op_type for node in onnx.load(exported.path).graph.node]
    assert "Scan" not in kinds_of_nodes
    assert kinds_of_nodes.count("Gemm") == 3 * 2


@pytest.mark.slow
def test_the_faster_form_within_a_memory_is_taken(tmp_path: Path) -> None:
    ensemble = Ensemble(mixed_members(), make_mlp)
    found = export_onnx(ensemble, tmp_path / "e.onnx", X, layout="fastest")
    assert found.layout == min(found.seconds, key=found.seconds.__getitem__)
    assert set(found.seconds) == {"loop", "side by side"}
    one = count_bytes(close_members(1)[0])
    # The counter of batches is the same in all members.
    assert found.resident == {"loop": ensemble.nbytes + one, "side by side": 8 + 3 * (one - 8)}
    least = min(found.resident.values())
    small = export_onnx(ensemble, tmp_path / "e.onnx", X, layout="fastest", memory=least)
    assert small.resident[small.layout] == least
    assert small.seconds == {}  # there was nothing to choose
    with pytest.raises(ExportError, match=f"must take at most 100 bytes, got {least:,} of the layout"):
        export_onnx(ensemble, tmp_path / "e.onnx", X, layout="fastest", memory=100)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    form: Any = "side-by-side"
    with pytest.raises(
        ValueError, match="layout must be one of loop, side by side and fastest, got 'side-by-side'"
    ):
        export_onnx(Ensemble(close_members(2), make_mlp), tmp_path / "e.onnx", X, layout=form)


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True])
def test_members_are_exported_in_the_types_of_the_model(is_packed: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    members = [{"weight": 2 * torch.randn(3, 4, generator=generator).half()} for _ in range(2)]
    ensemble = Ensemble(members, lambda: nn.Linear(4, 3, bias=False))
    if is_packed:
        ensemble = ensemble.with_members(pack_members(members, 3, PackSettings()))
    exported = export_torch(ensemble, tmp_path / "e.pt2", X)
    assert exported.largest_difference < 1e-6
    torch.testing.assert_close(answer(exported.path, OTHER), ensemble.predict(OTHER))


@pytest.mark.parametrize("part", ["read", "run"])
def test_a_file_that_torch_cannot_use_is_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel for it")

    class Program:
        def module(self) -> Callable[..., None]:
            return fail

    monkeypatch.setattr(torch.export, "load", fail if part == "read" else lambda _: Program())
    with pytest.raises(ExportError, match=f"as a .pt2 file that torch can {part}: no kernel for it"):
        export_torch(unusual(torch.tanh), tmp_path / "e.pt2", X)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", FORMATS)
def test_raw_outputs_are_exported_as_their_mean(file: str, tmp_path: Path) -> None:
    members = [{"weight": torch.randn(3, 2, generator=torch.Generator().manual_seed(s))} for s in (0, 1)]
    ensemble = Ensemble(members, lambda: torch.nn.Linear(2, 3, bias=False), task=Raw())
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(2))
    FORMATS[file](ensemble, tmp_path / file, x)
    if file == "e.onnx":
        session = onnxruntime.InferenceSession(tmp_path / file)
        assert [value.name for value in session.get_outputs()] == ["predictions"]
        found = torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0])
    else:
        found = torch.export.load(tmp_path / file).module()(x)
    expected = x @ (members[0]["weight"] + members[1]["weight"]).T / 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
