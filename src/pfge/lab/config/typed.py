"""Dataclasses from JSON and TOML, and back to JSON: one reader that checks types, bounds and keys.

Every error names the place of the value, such as `growing.test[0].nll`, the rule and the value. pydantic and
msgspec were measured on the same inputs; docs/architecture.md has the result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pfge.errors import InvalidValueError
from pfge.storage.files import is_large_int

Mark = TypeVar("Mark")

LARGEST_FLOAT = 1e100
"""Largest size of a number in a result, so that statistics of results cannot overflow."""


class FieldError(InvalidValueError):
    """A value that does not fit its field; the message names the field, the rule and the value."""


@dataclass(frozen=True)
class Flat:
    """In `Annotated`, marks a mapping whose items are written beside the other keys of its object.

    Args:
        keys: Keys that the mapping may have; () allows all that are not another field's name.
    """

    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredAs:
    """In `Annotated`, marks a field that is written as another value.

    Args:
        encode: Returns the JSON value of the field; None leaves the key out.
        decode: Returns the field from its JSON value, or raises a ValueError that names the key.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def require_finite(value: float, at: str) -> None:
    """Check in `Annotated` that a number is finite, and so are its square and sums of them."""
    if not isfinite(value):
        raise FieldError(f"{at} must be finite, got {value}")
    if abs(value) > LARGEST_FLOAT:
        raise FieldError(f"{at} must be at most {LARGEST_FLOAT:g} in size, got {value}")


def at_least(least: int) -> Callable[[float, str], None]:
    """Return a check in `Annotated` for numbers of at least this."""

    def check(value: float, at: str) -> None:
        if not value >= least:
            raise FieldError(f"{at} must be at least {least}, got {_show(value)}")

    return check


def require_above_0(value: float, at: str) -> None:
    """Check in `Annotated` that a number is above 0 and finite."""
    if not 0 < value < inf:  # written so that NaN fails too
        raise FieldError(f"{at} must be above 0 and finite, got {value}")


def require_at_least_0(value: float, at: str) -> None:
    """Check in `Annotated` that a number is at least 0 and finite."""
    if not 0 <= value < inf:
        raise FieldError(f"{at} must be at least 0 and finite, got {value}")


def require_keys(*keys: str) -> Callable[[Mapping[str, Any], str], None]:
    """Return a check in `Annotated` for mappings that have these keys."""

    def check(value: Mapping[str, Any], at: str) -> None:
        for key in keys:
            if key not in value:
                raise FieldError(f"{_join(at, key)} is missing")

    return check


def run_checks(value: Any, at: str = "") -> None:
    """Run the checks in `Annotated` of a dataclass, and of the dataclasses in its fields.

    `decode` runs them while it reads; this is for a dataclass that was made in Python.
    """
    kind: type = type(value)
    for name, hint in _hints(kind).items():
        item, place = getattr(value, name), _join(at, name)
        if is_dataclass(item):
            run_checks(item, place)
        for check in _checks(hint):
            check(item, place)


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


def decode(kind: Any, value: Any, at: str = "", *, is_toml: bool = False) -> Any:
    """Return a value of a type from what a JSON or TOML parser returned.

    Args:
        kind: str, bool, int, float, Any, a union of those, or a Literal of strings, a list, Sequence, tuple,
            dict, Mapping or dataclass of those. Functions in `Annotated` are called with the value and its
            place.
        value: The parsed value.
        at: Its place in the whole, for errors.
        is_toml: Whether the value comes from a config, where a key that a dataclass does not have is an
            error. In results such keys are ignored, because later versions may add some.

    Raises:
        FieldError: The value does not have that type, or a check fails.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if stored := _mark(kind, StoredAs):
        try:
            return stored.decode(value)
        except ValueError as error:
            raise FieldError(str(error)) from None
    if origin is Annotated:
        found = decode(arguments[0], value, at, is_toml=is_toml)
        for check in _checks(kind):
            check(found, at)
        return found
    if origin in (Union, UnionType):
        kinds = tuple(argument for argument in arguments if argument is not NoneType)
        if value is None and NoneType in arguments:
            return None
        return _scalar(kinds, value, at) if len(kinds) > 1 else decode(kinds[0], value, at, is_toml=is_toml)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(f"one of {', '.join(map(repr, arguments))}", value, at)
        return value
    if origin in (list, Sequence, tuple):
        return _decode_list(origin, arguments, value, at, is_toml)
    if origin in (dict, Mapping):
        items = _mapping(value, at, is_toml).items()
        return {
            _scalar((str,), key, at): decode(arguments[1], item, _join(at, key), is_toml=is_toml)
            for key, item in items
        }
    if is_dataclass(kind):
        return _decode_fields(kind, _mapping(value, at, is_toml), at, is_toml)
    if kind is Any:
        _require_small_numbers(value, at)
        return value
    return _scalar((kind,), value, at)


def _decode_list(origin: Any, arguments: tuple[Any, ...], value: Any, at: str, is_toml: bool) -> Any:
    if not isinstance(value, list):
        raise _wrong("a list", value, at)
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise FieldError(f"{at} must have {len(arguments)} entries, got {len(value)}")
        kinds: Sequence[Any] = arguments
    else:
        kinds = [arguments[0]] * len(value)
    pairs = enumerate(zip(kinds, value, strict=True))
    found = [decode(kind, item, f"{at}[{index}]", is_toml=is_toml) for index, (kind, item) in pairs]
    return tuple(found) if origin is tuple else found


def _decode_fields(kind: Any, value: dict[str, Any], at: str, is_toml: bool) -> Any:
    hints = _hints(kind)
    if is_toml:
        for key in value:
            if key not in hints:
                close = get_close_matches(key, hints, n=1)
                hint = f"did you mean {_join(at, close[0])}? " if close else ""
                allowed = ", ".join(hints)
                raise FieldError(f"{_join(at, key)} is not a setting; {hint}allowed: {allowed}")
    found = {}
    for field in fields(kind):
        hint = hints[field.name]
        if flat := _mark(hint, Flat):
            items = {k: v for k, v in value.items() if (k in flat.keys if flat.keys else k not in hints)}
            found[field.name] = decode(hint, items, at)
        elif field.name in value:
            found[field.name] = decode(hint, value[field.name], _join(at, field.name), is_toml=is_toml)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise FieldError(f"{_join(at, field.name)} is missing")
    return kind(**found)


SCALARS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
"""What each type is called in errors."""


def _scalar(kinds: tuple[Any, ...], value: Any, at: str) -> Any:
    """Return a value that has one of these types; a whole number is a float too, but true is not a number."""
    if unknown := [kind for kind in kinds if kind not in SCALARS]:
        raise TypeError(f"a dataclass that is read cannot have a field of type {unknown[0]}")
    _require_small_numbers(value, at)
    if type(value) not in kinds:
        if type(value) is int and float in kinds:
            return float(value)
        raise _wrong(" or ".join(SCALARS[kind] for kind in kinds), value, at)
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and no file can hold
            raise _wrong("valid Unicode", value, at) from None
    return value


def _require_small_numbers(value: Any, at: str) -> None:
    match value:
        case dict():
            for key, item in value.items():
                _require_small_numbers(item, _join(at, key))
        case list():
            for index, item in enumerate(value):
                _require_small_numbers(item, f"{at}[{index}]")
        case _ if is_large_int(value):
            raise _wrong("a number of at most 64 bits", value, at)


def _mapping(value: Any, at: str, is_toml: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong("a table" if is_toml else "a JSON object", value, at)
    return value


def _wrong(expected: str, value: Any, at: str) -> FieldError:
    return FieldError(f"{at or 'it'} must be {expected}, got {_show(value)}")


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if is_large_int(value):  # Python refuses to print the longest
        return f"one of {value.bit_length():,} bits"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _join(at: str, key: str) -> str:
    shown = key if key.isprintable() else ascii(key)
    return f"{at}.{shown}" if at else shown


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _checks(hint: Any) -> list[Callable[[Any, str], None]]:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [mark for mark in marks if callable(mark)]


def _mark(hint: Any, kind: type[Mark]) -> Mark | None:
    """Return the mark of a kind that a type has in `Annotated`, if it has one."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, kind)), None)
