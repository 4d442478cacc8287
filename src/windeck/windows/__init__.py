"""Windows of tables as training samples, and their scaling."""

from windeck.windows.balanced import BalancedWindows
from windeck.windows.scaler import Scaler
from windeck.windows.windows import Windows

__all__ = ["BalancedWindows", "Scaler", "Windows"]
