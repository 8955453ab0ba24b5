"""How categories look wherever memory is drawn: their colours, and the order in which they are stacked."""

from __future__ import annotations

from collections.abc import Mapping

from planner.events import Category

STACKED = (
    Category.PARAMETER, Category.OPTIMIZER_STATE, Category.BUCKET, Category.GRADIENT, Category.INPUT,
    Category.ACTIVATION, Category.WORKSPACE, Category.COMMUNICATION, Category.OTHER, Category.TEMPORARY,
)  # fmt: skip
"""From the bottom up: what stays longest lies lowest, so that the picture is calm."""
LIGHT = {
    Category.PARAMETER: "#4f79a8", Category.GRADIENT: "#d08a3c", Category.BUCKET: "#c2603f",
    Category.OPTIMIZER_STATE: "#8a6db1", Category.ACTIVATION: "#5a9a68", Category.TEMPORARY: "#d4b740",
    Category.WORKSPACE: "#a2627f", Category.INPUT: "#4aa3a0", Category.COMMUNICATION: "#bb4f5b",
    Category.OTHER: "#9aa0a6",
}  # fmt: skip
"""On a light page."""
DARK = {
    Category.PARAMETER: "#6b97c9", Category.GRADIENT: "#d99a55", Category.BUCKET: "#d27a5b",
    Category.OPTIMIZER_STATE: "#a58cc9", Category.ACTIVATION: "#78b585", Category.TEMPORARY: "#d9c363",
    Category.WORKSPACE: "#bb809a", Category.INPUT: "#65b8b5", Category.COMMUNICATION: "#d06e79",
    Category.OTHER: "#878e97",
}  # fmt: skip
"""On a dark page."""


def css_variables(colors: Mapping[Category, str]) -> str:
    """`--parameter: #4f79a8; ...`, for a style sheet."""
    return " ".join(f"--{category.value}: {color};" for category, color in colors.items())
