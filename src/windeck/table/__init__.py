"""Tables: columns of one length, cut into series in order of time."""

from windeck.table.construction import SeriesLayout
from windeck.table.group_cache import Blocks, cover
from windeck.table.streamed import StreamedColumn
from windeck.table.table import StreamedTable, Table

__all__ = ["Blocks", "SeriesLayout", "StreamedColumn", "StreamedTable", "Table", "cover"]
