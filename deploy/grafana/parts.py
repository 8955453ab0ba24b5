"""What a dashboard is made of, as values, and how they become Grafana's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = words.DataSourceRef(type_val="prometheus", uid="${datasource}")
BYTES, RATIO, SECONDS, COUNT, PER_SECOND = "bytes", "percentunit", "s", "short", "ops"
GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
JOB_LINK = "/d/planner-job/?var-system=${__data.fields.system}&var-job_id=${__data.fields.job_id}&${__url_time_range}"


@dataclass(frozen=True, kw_only=True)
class View:
    """One panel. `kind` is stat, lines, stacked, bars or table; the grid is 24 columns wide.

    `steps` are thresholds: from which value on which color; a table's `columns` name the values of its queries.
    """

    title: str
    tells: str
    queries: tuple[tuple[str, str], ...]
    """Expression, and what its series are called."""
    kind: str = "lines"
    unit: str = BYTES
    width: int = 12
    height: int = 8
    steps: tuple[tuple[float | None, str], ...] = ((None, GREEN),)
    decimals: int | None = None
    named: bool = False
    """A stat that shows the name of its series: what an info metric tells."""
    columns: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    """Of columns that have another unit than the rest."""
    hidden: tuple[str, ...] = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    """Of series by their name, where thresholds cannot say it."""
    link: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A list of values to choose from; `many` of them at once, and all to begin with."""

    name: str
    label: str
    tells: str
    query: str
    many: bool = False
    shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Page:
    """One dashboard: rows of panels under their titles."""

    uid: str
    title: str
    tells: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[str, tuple[View, ...]], ...]
    span: str = "now-6h"


def built(page: Page) -> model.Dashboard:
    """As Grafana imports it."""
    made = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.tells)
        .tags(["planner", "gpu", "memory"])
        .time(page.span, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(_other_dashboards())
        .annotation(_alerts())
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for each in page.variables:
        made = made.with_variable(_variable(each))
    number = 0
    for title, views in page.rows:
        number += 1
        made = made.with_row(dashboard.Row(title).id(number))
        for view in views:
            number += 1
            made = made.with_panel(_panel(view).id(number))
    return _in_sight(made.build())


def _in_sight(made: model.Dashboard) -> model.Dashboard:
    """The SDK puts links and annotations into a menu unless they say nothing of their place."""
    for each in [*(made.links or []), *((made.annotations and made.annotations.list_val) or [])]:
        each.placement = None
    return made


def _other_dashboards() -> Any:
    return (
        dashboard.DashboardLink("planner")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags(["planner"])
        .as_dropdown(True)
        .keep_time(True)
        .tooltip("planner's other dashboards")
    )


def _alerts() -> Any:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(RED)
        .expr('ALERTS{alertname=~"Planner.+",alertstate="firing"}')
        .title_format("{{alertname}}")
        .text_format("{{system}} {{job_id}} {{gpu}}")
        .step("60s")
    )


def _variable(each: Variable) -> Any:
    made = (
        dashboard.QueryVariable(each.name)
        .label(each.label)
        .description(each.tells)
        .datasource(DATASOURCE)
        .query({"query": each.query, "refId": each.name})
        .definition(each.query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(each.many)
        .include_all(each.many)
    )
    if each.many:
        made = made.all_value(".*").current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return made if each.shown else made.hide(model.VariableHide.HIDE_VARIABLE)


def _panel(view: View) -> Any:
    made = _KINDS[view.kind](view)
    made = (
        made.title(view.title)
        .description(view.tells)
        .datasource(DATASOURCE)
        .unit(view.unit)
        .span(view.width)
        .height(view.height)
        .thresholds(_thresholds(view))
    )
    if view.decimals is not None:
        made = made.decimals(view.decimals)
    for name, color in view.colors.items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
        made = made.override_by_name(name, [fixed])
    if view.link is not None:
        title, url = view.link
        made = made.data_links([dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url)])
    for place, (expression, legend) in enumerate(view.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place))
        if view.kind == "table":
            query = query.instant().format(PromQueryFormat.TABLE)
        elif view.kind == "bars" or view.named:
            query = query.instant()
        else:
            query = query.range()
        made = made.with_target(query)
    return made


def _thresholds(view: View) -> Any:
    steps = [model.Threshold(value=value, color=color) for value, color in view.steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _stat(view: View) -> Any:
    made = stat.Panel().color_mode(words.BigValueColorMode.VALUE).reduce_options(_last())
    if view.named:
        return made.text_mode(words.BigValueTextMode.NAME).graph_mode(words.BigValueGraphMode.NONE)
    return made.graph_mode(words.BigValueGraphMode.AREA)


def _lines(_: View) -> Any:
    legend = common.VizLegendOptions().display_mode(words.LegendDisplayMode.TABLE).show_legend(True)
    return (
        timeseries.Panel()
        .legend(legend.placement(words.LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"]))
        .tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(5)
    )


def _stacked(view: View) -> Any:
    return _lines(view).fill_opacity(40).stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))


def _bars(_: View) -> Any:
    return (
        bargauge.Panel()
        .orientation(words.VizOrientation.HORIZONTAL)
        .display_mode(words.BarGaugeDisplayMode.BASIC)
        .reduce_options(_last())
    )


def _table(view: View) -> Any:
    values = [f"Value #{chr(ord('A') + place)}" for place in range(len(view.queries))]
    if len(values) == 1:
        values = ["Value"]
    hidden = ("Time", "__name__", "instance", "job", *view.hidden)
    organized = {
        "excludeByName": dict.fromkeys(hidden, True),
        "renameByName": dict(zip(values, view.columns, strict=True)),
    }
    made = (
        table.Panel()
        .filterable(True)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(model.DataTransformerConfig(id_val="organize", options=organized))
    )
    for name, unit in view.units.items():
        made = made.override_by_name(name, [model.DynamicConfigValue(id_val="unit", value=unit)])
    return made


def _last() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


_KINDS = {"stat": _stat, "lines": _lines, "stacked": _stacked, "bars": _bars, "table": _table}
