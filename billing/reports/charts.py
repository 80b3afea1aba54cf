"""Charts as inline SVG of a page: text that can be read out and searched, a tooltip on each mark, no pixels.

Colours are the page's: on screens CSS variables, so that a chart follows a change from light to dark; in print fixed
ones.  A table beside the chart must contain the same data.  Heights and widths of marks are floats; the caller passes
the text of their labels.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PX: Final = 960
_POINTS_AN_INCH: Final = 72
_FONT_PX: Final = 12.5
_BAR_PX: Final = 26
_LABEL_MAX: Final = 34


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour of the page."""

    variable: str
    stand_in: str
    """Placeholder that matplotlib draws with; unique among a chart's colours."""
    light: str
    """Colour in print, and where the page does not define the variable."""


INK: Final = Colour("ink", "#010101", "#1f2328")
MUTED: Final = Colour("muted", "#010102", "#59636e")
GRID: Final = Colour("grid", "#010103", "#e3e6ea")
BLUE: Final = Colour("blue", "#010104", "#2a6fdb")
TEAL: Final = Colour("teal", "#010105", "#12897b")
VIOLET: Final = Colour("violet", "#010106", "#8250df")
GREY: Final = Colour("grey", "#010107", "#9aa3ad")
AMBER: Final = Colour("amber", "#010108", "#c4680a")
COLOURS: Final = (INK, MUTED, GRID, BLUE, TEAL, VIOLET, GREY, AMBER)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One stacked part of each day's column."""

    label: str
    colour: Colour
    values: Sequence[float]
    tips: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a ranking."""

    label: str
    value: float
    text: str
    """Label beside the bar."""
    tip: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, for screens and for print."""

    name: str
    """Name, unique in the page."""
    title: str
    description: str
    """Alternative text: what the picture says."""
    drawn: str

    def on_screen(self) -> str:
        return self._coloured(lambda colour: f"var(--{colour.variable}, {colour.light})")

    def in_print(self) -> str:
        return self._coloured(lambda colour: colour.light)

    def _coloured(self, shown: Callable[[Colour], str]) -> str:
        svg = self.drawn
        for colour in COLOURS:
            svg = svg.replace(colour.stand_in, shown(colour))
        return svg


def days_chart(
    name: str,
    title: str,
    description: str,
    days: Sequence[str],
    series: Sequence[ChartSeries],
    tick: Callable[[float], str],
) -> Chart:
    """Draw stacked columns, one for each day; the first series is lowest."""
    figure, axes = _figure(300)
    floor = [0.0] * len(days)
    tips: list[str] = []
    for one in series:
        bars = axes.bar(
            range(len(days)), one.values, bottom=floor, width=0.72, color=one.colour.stand_in, label=one.label
        )
        tips += _tipped(list(bars), one.tips, len(tips))
        floor = [low + value for low, value in zip(floor, one.values, strict=True)]
    axes.set_xticks(range(len(days)), days)
    axes.set_xlim(-0.6, len(days) - 0.4)
    _value_axis(axes.yaxis, tick)
    axes.set_ylim(0, (max(floor, default=0.0) or 1.0) * 1.08)
    if len(series) > 1:
        _legend(axes, len(series))
    return _chart(name, title, description, figure, tips)


def ranking_chart(name: str, title: str, description: str, bars: Sequence[Bar], colour: Colour = BLUE) -> Chart:
    """Draw horizontal bars, the first one on top, each with its label and its number."""
    figure, axes = _figure(34 + _BAR_PX * max(1, len(bars)))
    drawn = axes.barh(range(len(bars)), [bar.value for bar in bars], height=0.66, color=colour.stand_in)
    tips = _tipped(list(drawn), [bar.tip for bar in bars], 0)
    value_max = max((bar.value for bar in bars), default=0.0) or 1.0
    for row, bar in enumerate(bars):
        axes.annotate(
            _plain(bar.text),
            (max(bar.value, 0.0), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=INK.stand_in,
            fontsize=_FONT_PX,
        )
    axes.set_yticks(range(len(bars)), [_plain(_short(bar.label)) for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, value_max * 1.16)
    axes.set_xticks([])
    axes.tick_params(axis="y", labelcolor=INK.stand_in)
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_visible(True)
    return _chart(name, title, description, figure, tips)


def forecast_chart(
    name: str,
    title: str,
    description: str,
    days: Sequence[str],
    known: Sequence[float],
    expected: Sequence[tuple[float, float, float]],
    tick: Callable[[float], str],
    end_text: str,
) -> Chart:
    """Draw the cumulative total up to each known day, and for later days the low, expected and high values."""
    figure, axes = _figure(280)
    axes.plot(
        range(len(known)),
        known,
        color=BLUE.stand_in,
        linewidth=2.4,
        label="up to now",
        solid_capstyle="round",
        marker="o" if len(known) == 1 else "",  # a single day makes no line
    )
    if expected:
        begin = max(0, len(known) - 1)
        so_far = known[-1] if known else 0.0
        ahead = list(range(begin, begin + len(expected) + 1))
        low, middle, high = zip((so_far,) * 3, *expected, strict=True)
        axes.fill_between(ahead, low, high, color=BLUE.stand_in, alpha=0.16, linewidth=0, label="nine times of ten")
        axes.plot(ahead, middle, color=BLUE.stand_in, linewidth=2.0, linestyle=(0, (3, 3)), label="expected")
        axes.annotate(
            _plain(end_text),
            (ahead[-1], middle[-1]),
            xytext=(-6, 8),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=INK.stand_in,
            fontsize=_FONT_PX,
            fontweight="bold",
        )
    axes.set_xticks(range(len(days)), days)
    axes.set_xlim(-0.6, len(days) - 0.4)
    value_max = max([*known, *(high for _, _, high in expected)], default=0.0)
    axes.set_ylim(0, (value_max or 1.0) * 1.15)
    _value_axis(axes.yaxis, tick)
    _legend(axes, 3)
    return _chart(name, title, description, figure, [])


# --- drawing --------------------------------------------------------------------------------------------------


def _figure(height_px: int) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / _POINTS_AN_INCH, height_px / _POINTS_AN_INCH), layout="constrained")
    figure.patch.set_visible(False)
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(MUTED.stand_in)
    axes.tick_params(length=0, labelsize=_FONT_PX, labelcolor=MUTED.stand_in, pad=6)
    axes.set_axisbelow(True)
    return figure, axes


def _value_axis(axis: Any, tick: Callable[[float], str]) -> None:
    """Set ticks at whole numbers, as the values are counts."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(tick(value))))
    axis.grid(visible=True, color=GRID.stand_in, linewidth=1)


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.005, 1.0),
        ncols=columns,
        frameon=False,
        labelcolor=INK.stand_in,
        fontsize=_FONT_PX,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.6,
        handletextpad=0.5,
        borderpad=0.2,
    )


def _tipped(marks: Sequence[Any], tips: Sequence[str], first: int) -> list[str]:
    for at, (mark, _) in enumerate(zip(marks, tips, strict=True), first):
        mark.set_gid(f"mark{at}")
    return list(tips)


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_MAX else f"{label[: _LABEL_MAX - 1]}…"


def _plain(text: str) -> str:
    """Escape text that matplotlib would parse as a formula."""
    return text.replace("$", r"\$")


_FONTS: Final = re.compile(r"font-family: [^;\"]*")
_STYLE: Final = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)
"""Style element of the SVG; it is removed, because it would apply to the whole page."""
_HEAD: Final = re.compile(r"<svg .*?viewBox=\"([^\"]*)\".*?>", re.DOTALL)


def _chart(name: str, title: str, description: str, figure: Figure, tips: Sequence[str]) -> Chart:
    import matplotlib as mpl

    out = StringIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts are used, not this machine's
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    whole = out.getvalue()
    svg = whole[whole.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for at, tip in enumerate(tips):
        svg = svg.replace(f'<g id="mark{at}">', f'<g id="mark{at}"><title>{escape(tip)}</title>')
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)  # ids have to be unique in a page of several charts
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", svg)
    svg = _FONTS.sub("font-family: system-ui, sans-serif", _STYLE.sub("", svg))
    head = (
        rf'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" '
        rf'stroke-linejoin="round" role="img" aria-labelledby="{name}-title {name}-description">'
    )
    svg = _HEAD.sub(head, svg, count=1)
    caption = (
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
    )
    return Chart(name, title, description, svg.replace(">", f">{caption}", 1))
