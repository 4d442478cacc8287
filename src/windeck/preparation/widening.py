"""Types that hold the values of files which have the same column in types of unequal width.

pandas writes a column of integers as int64 where no value is missing and as double where some are,
and tools differ in the unit of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windeck.io.conversion import is_string, value_type

__all__ = ["convert", "retyped_schema", "text_types", "wider_types"]

_UNITS = ("s", "ms", "us", "ns")


def wider_types(
    schemas: Sequence[Any], names: Iterable[str], ids: Sequence[str], time: str | None
) -> dict[str, Any]:
    """Return the type of each column whose types differ, if one holds them all, and of `time`.

    The widest of integers, or of floats; float64 for both, but not of `ids`; the finest unit of
    times with a zone or of those without.
    """
    found = {}
    for name in names:
        kinds = [value_type(schema.field(name).type) for schema in schemas]
        kinds = [kind for kind in kinds if not pa.types.is_null(kind)]
        wide = _wider(kinds)
        if name in ids and not all(map(pa.types.is_integer, kinds)):
            continue
        if wide is not None and (name == time or len(set(kinds)) > 1):
            found[name] = wide
    return found


def text_types(
    texts: Sequence[Any], others: Sequence[Any], ids: Sequence[str], time: str | None
) -> dict[str, Any]:
    """Return the types in which CSV files are parsed, where the types of their first rows differ.

    Text has no types: a date may be a time at midnight, and a number may be a name.

    Parameters
    ----------
    texts, others
        Schemas of CSV files, as inferred, and of other files.

    Examples
    --------
    >>> import pyarrow as pa
    >>> one = pa.schema({"site": pa.int64(), "time": pa.date32()})
    >>> other = pa.schema({"site": pa.string(), "time": pa.timestamp("s")})
    >>> text_types([one, other], [], ["site"], "time")
    {'site': DataType(string), 'time': TimestampType(timestamp[s])}
    """
    found: dict[str, Any] = {}

    def kinds(schemas: Sequence[Any], name: str) -> set[Any]:
        types = {value_type(schema.field(name).type) for schema in schemas}
        return {kind for kind in types if not pa.types.is_null(kind)}

    for name in ids:
        inside = kinds(texts, name)
        numbers = {kind for kind in inside if not is_string(kind)}
        if numbers == {pa.int64()} and any(map(is_string, inside | kinds(others, name))):
            found[name] = pa.string()
    if time is not None and pa.date32() in (inside := kinds(texts, time)):
        stamps = (inside | kinds(others, time)) - {pa.date32()}
        if stamps and all(pa.types.is_timestamp(kind) and kind.tz is None for kind in stamps):
            found[time] = pa.timestamp("ns" if pa.timestamp("ns") in inside else "s")
    elif time is not None and inside == {pa.timestamp("s"), pa.timestamp("ns")}:
        found[time] = pa.timestamp("ns")
    return found


def _wider(kinds: Sequence[Any]) -> Any:
    """Return a type that holds values of all types; None if there is none."""
    if not kinds:
        return None
    whole = [kind for kind in kinds if pa.types.is_integer(kind)]
    floats = [kind for kind in kinds if pa.types.is_floating(kind)]
    if len(whole) + len(floats) == len(kinds):
        if floats:
            return pa.float64() if whole else max(floats, key=lambda kind: kind.bit_width)
        bits = {
            sign: max((k.bit_width for k in whole if is_sign(k)), default=0)
            for sign, is_sign in (
                ("u", pa.types.is_unsigned_integer),
                ("i", pa.types.is_signed_integer),
            )
        }
        if not bits["i"]:
            return next(kind for kind in whole if kind.bit_width == bits["u"])
        signed = max(bits["i"], 2 * bits["u"])
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(signed)
    if all(map(pa.types.is_timestamp, kinds)) and len({kind.tz is None for kind in kinds}) == 1:
        zones = {kind.tz for kind in kinds}
        unit = max((kind.unit for kind in kinds), key=_UNITS.index)
        return pa.timestamp(unit, zones.pop() if len(zones) == 1 else "UTC")
    return None


def _applies(kind: Any, wide: Any) -> bool:
    plain = value_type(kind)
    return bool(plain != wide and _wider([plain, wide]) == wide)


def retyped_schema(schema: Any, types: Mapping[str, Any]) -> Any:
    """Return a schema with the types of `wider_types`, where they hold its values."""
    for place, field in enumerate(schema):
        if field.name in types and _applies(field.type, types[field.name]):
            schema = schema.set(place, field.with_type(types[field.name]))
    return schema


def convert(name: str, array: Any, types: Mapping[str, Any], where: str) -> Any:
    """Return a column in its type of `wider_types`, if that holds its values.

    Raises
    ------
    OverflowError
        A value has no equal there. Not a ValueError: the file is not damaged.
    """
    wide = types.get(name)
    if wide is None or not _applies(array.type, wide):
        return array
    try:
        return array.cast(value_type(array.type)).cast(wide)
    except pa.ArrowInvalid as error:
        raise OverflowError(
            f"column {name!r} of {where!r} is {array.type}, and {wide} holds the values of other "
            f"files, but not all of this one: {str(error).splitlines()[0]}"
        ) from None
