"""Charts: they show the given data, and several fit into one page."""

import re
from xml.etree import ElementTree as ET

from billing.reports.charts import (
    BLUE,
    COLOURS,
    TEAL,
    Bar,
    Chart,
    ChartSeries,
    days_chart,
    forecast_chart,
    ranking_chart,
)

SVG = "{http://www.w3.org/2000/svg}"


def drawn(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def marks(svg: ET.Element) -> dict[str, tuple[float, float]]:
    """Width and height of each mark, by its tooltip."""
    found: dict[str, tuple[float, float]] = {}
    for group in svg.iter(f"{SVG}g"):
        tip = group.find(f"{SVG}title")
        if tip is not None:
            path = group.find(f"{SVG}path")
            assert path is not None
            corners = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"])]
            columns, rows = [x for x, _ in corners], [y for _, y in corners]
            found[tip.text or ""] = (max(columns) - min(columns), max(rows) - min(rows))
    return found


def texts(svg: ET.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def two_days(name: str = "calls") -> Chart:
    return days_chart(
        name,
        "Calls <by> day",
        "Most on the 2nd & last.",
        ["1", "2"],
        [
            ChartSeries("Sends", BLUE, [10, 20], ["10 sends", "20 sends"]),
            ChartSeries("Receives", TEAL, [5, 40], ["5 r", "40 r"]),
        ],
        lambda value: f"{value:g}",
    )


def test_columns_are_as_high_as_their_values() -> None:
    sizes = marks(drawn(two_days().on_screen()))
    each = sizes["10 sends"][1] / 10
    assert {tip: round(height / each) for tip, (_, height) in sizes.items()} == {
        "10 sends": 10,
        "20 sends": 20,
        "5 r": 5,
        "40 r": 40,
    }


def test_a_chart_has_a_description() -> None:
    svg = drawn(two_days().on_screen())
    assert svg.attrib["role"] == "img"
    title, description = (svg.find(f"{SVG}{name}") for name in ("title", "desc"))
    assert title is not None
    assert description is not None
    assert (title.text, description.text) == ("Calls <by> day", "Most on the 2nd & last.")
    assert svg.attrib["aria-labelledby"].split() == [title.attrib["id"], description.attrib["id"]]
    assert {"Sends", "Receives", "1", "2"} <= set(texts(svg))


def test_bars_have_their_labels_and_are_as_long_as_their_values() -> None:
    bars = [Bar("orders for $5 & $x$", 30, "$30.00", "a"), Bar("b" * 50, 10, "<10>", "b"), Bar("none", 0, "0", "c")]
    svg = drawn(ranking_chart("r", "R", "d", bars).on_screen())
    sizes = marks(svg)
    assert round(sizes["a"][0] / sizes["b"][0], 3) == 3
    assert sizes["c"][0] == 0
    assert {"orders for $5 & $x$", "b" * 33 + "…", "$30.00", "<10>"} <= set(texts(svg))


def test_a_forecast_continues_where_the_known_days_end() -> None:
    days = [str(day) for day in range(1, 6)]
    chart = forecast_chart("f", "F", "d", days, [1, 2], [(2.5, 3, 3.5), (3, 4, 5), (3.5, 5, 7)], str, "5 likely")
    assert "5 likely" in texts(drawn(chart.on_screen()))
    alone = forecast_chart("f", "F", "d", days, [1, 2], [], str, "5 likely")
    assert "5 likely" not in texts(drawn(alone.on_screen()))


def test_nothing_at_all_can_be_drawn() -> None:
    for chart in (
        ranking_chart("r", "R", "d", []),
        days_chart("c", "C", "d", [], [], str),
        forecast_chart("f", "F", "d", ["1"], [], [], str, ""),
    ):
        assert drawn(chart.on_screen()).attrib["viewBox"]


def test_colours_are_the_pages_own_on_screen_and_fixed_in_print() -> None:
    chart = two_days()
    for colour in COLOURS:
        assert colour.stand_in in chart.drawn or colour not in (BLUE, TEAL)
        assert colour.stand_in not in chart.on_screen() + chart.in_print()
    assert f"var(--blue, {BLUE.light})" in chart.on_screen()
    assert "var(" not in chart.in_print()
    assert BLUE.light in chart.in_print()


def test_charts_of_one_page_share_no_id_and_leave_the_page_alone() -> None:
    ids = [
        element.attrib["id"]
        for name in ("one", "two")
        for element in drawn(two_days(name).on_screen()).iter()
        if "id" in element.attrib
    ]
    assert len(ids) == len(set(ids))
    svg = two_days().on_screen()
    assert "<style" not in svg
    assert {target[1:] for target in re.findall(r"(?:url\(|href=\")(#[^)\"]+)", svg)} <= set(
        re.findall(r'id="(.*?)"', svg)
    )
    assert two_days().drawn == two_days().drawn


def test_signs_that_no_font_here_has_are_left_to_the_reader() -> None:
    assert "注文 🐦" in texts(drawn(ranking_chart("r", "R", "d", [Bar("注文 🐦", 1, "1", "t")]).on_screen()))
