"""What an architecture may say: operations on values, weights and states, as plain data."""

from .graph import Graph
from .values import Part, Routing, Value
from .weights import Experts, Matrix, NgramTable, Vector

__all__ = ["Experts", "Graph", "Matrix", "NgramTable", "Part", "Routing", "Value", "Vector"]
