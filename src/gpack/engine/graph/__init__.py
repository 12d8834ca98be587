"""What an architecture says: operations on values."""

from .graph import Graph, float_bits
from .values import Part, Routing, Value, Vector

__all__ = ["Graph", "Part", "Routing", "Value", "Vector", "float_bits"]
