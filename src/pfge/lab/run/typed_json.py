"""Dataclasses as JSON and back: types are checked, and an error names the key that is missing or wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pfge.errors import InvalidValueError
from pfge.storage.files import is_large_int

Mark = TypeVar("Mark")

LARGEST_FLOAT = 1e100
"""Numbers are at most this large, so that statistics of them cannot overflow."""


class ResultError(InvalidValueError):
    """A JSON value that does not have the keys or types of a result; the message names the key."""


class LaterVersionError(ResultError):
    """A result whose format is that of a later version."""


@dataclass(frozen=True)
class Flat:
    """In `Annotated`, marks a mapping whose items are written beside the other keys of its object.

    Args:
        keys: Those that it may have; () for all that no other field has.
    """

    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredAs:
    """In `Annotated`, marks a field that is written as another value.

    Args:
        encode: Returns that value as JSON; the key is left out where it is None.
        decode: Returns the field from it; raises a ValueError that names the key if it cannot.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def require_finite(value: float, at: str) -> None:
    """Check in `Annotated` that a number is finite, and so are its square and sums of them."""
    if not isfinite(value):
        raise ResultError(f"`{at}` must be finite, got {value}")
    if abs(value) > LARGEST_FLOAT:
        raise ResultError(f"`{at}` must be at most {LARGEST_FLOAT:g} in size, got {value}")


def at_least(least: int) -> Callable[[float, str], None]:
    """Return a check in `Annotated` for numbers of at least this."""

    def check(value: float, at: str) -> None:
        if not value >= least:
            raise ResultError(f"`{at}` must be at least {least}, got {_show(value)}")

    return check


def require_keys(*keys: str) -> Callable[[Mapping[str, Any], str], None]:
    """Return a check in `Annotated` for mappings that have these keys."""

    def check(value: Mapping[str, Any], at: str) -> None:
        for key in keys:
            if key not in value:
                raise ResultError(f"it has no `{_join(at, key)}`")

    return check


def encode(value: Any) -> Any:
    """Return a value as JSON; a field whose default is None is left out where it is None."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if item is None and field.default is None:
                continue
            hint = _hints(type(value))[field.name]
            if stored := _mark(hint, StoredAs):
                encoded = stored.encode(item)
                found |= {} if encoded is None else {field.name: encoded}
                continue
            encoded = encode(item)
            found |= encoded if _mark(hint, Flat) else {field.name: encoded}
        return found
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: Any, value: Any, at: str = "") -> Any:
    """Return a JSON value as a value of a type.

    Args:
        kind: str, bool, int, float, Any, `X | None`, or a Literal of texts, a list, Sequence, tuple, Mapping
            or dataclass of those. Functions in `Annotated` are called with the value and its place. Keys
            that a dataclass does not have are ignored.
        value: As `json.loads` returns it.
        at: Its place in the whole, for errors.

    Raises:
        ResultError: The value is not of that type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if stored := _mark(kind, StoredAs):
        try:
            return stored.decode(value)
        except ValueError as error:
            raise ResultError(str(error)) from None
    if origin is Annotated:
        found = decode(arguments[0], value, at)
        for check in filter(callable, arguments[1:]):
            check(found, at)
        return found
    if origin in (Union, UnionType):
        (other,) = [argument for argument in arguments if argument is not NoneType]
        return None if value is None else decode(other, value, at)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(f"one of {', '.join(arguments)}", value, at)
        return value
    if origin in (list, Sequence):
        return [decode(arguments[0], item, f"{at}[{index}]") for index, item in enumerate(_list(value, at))]
    if origin is tuple:
        if len(_list(value, at)) != len(arguments):
            raise ResultError(f"`{at}` must have {len(arguments)} entries, got {len(value)}")
        pairs = zip(arguments, value, strict=True)
        return tuple(decode(argument, item, f"{at}[{index}]") for index, (argument, item) in enumerate(pairs))
    if origin is Mapping:
        items = _object(value, at).items()
        return {_text(key, at): decode(arguments[1], item, _join(at, key)) for key, item in items}
    if is_dataclass(kind):
        return _decode_fields(kind, _object(value, at), at)
    return _decode_scalar(kind, value, at)


def _decode_fields(kind: Any, value: dict[str, Any], at: str) -> Any:
    found = {}
    own = {field.name for field in fields(kind)}
    for field in fields(kind):
        hint = _hints(kind)[field.name]
        if flat := _mark(hint, Flat):
            items = {k: v for k, v in value.items() if (k in flat.keys if flat.keys else k not in own)}
            found[field.name] = decode(hint, items, at)
        elif field.name in value:
            found[field.name] = decode(hint, value[field.name], _join(at, field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ResultError(f"it has no `{_join(at, field.name)}`")
    return kind(**found)


def _decode_scalar(kind: Any, value: Any, at: str) -> Any:
    if kind is Any:
        return value
    if kind is str:
        return _text(value, at)
    if kind is bool:
        if not isinstance(value, bool):
            raise _wrong("true or false", value, at)
        return value
    if is_large_int(value):
        raise _wrong("a number of at most 64 bits", value, at)
    if kind is int:
        if type(value) is not int:
            raise _wrong("a whole number", value, at)
        return value
    if kind is float:
        if type(value) not in (int, float):
            raise _wrong("a number", value, at)
        return float(value)
    raise TypeError(f"a result cannot have a field of type {kind}")


def _object(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("a JSON object", value, at)
    return value


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong("a list", value, at)
    return value


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _wrong("a text", value, at)
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and no file can hold
        raise _wrong("a text of whole characters", value, at) from None
    return value


def _wrong(expected: str, value: Any, at: str) -> ResultError:
    return ResultError(f"{f'`{at}`' if at else 'it'} must be {expected}, got {_show(value)}")


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _join(at: str, key: str) -> str:
    shown = key if key.isprintable() else ascii(key)
    return f"{at}.{shown}" if at else shown


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _mark(hint: Any, kind: type[Mark]) -> Mark | None:
    """Return the mark of a kind that a type has in `Annotated`, if it has one."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, kind)), None)
