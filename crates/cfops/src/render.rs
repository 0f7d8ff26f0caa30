//! An answer as a person reads it: fields one a line, lists of objects as tables.
//!
//! There is no rule for any one tool here, so that a new one needs none. What does not fit is in `--json`.

use crate::terminal::printable;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Widest cell of a table.
const WIDEST_CELL: usize = 48;

/// Between the columns.
const GAP: &str = "  ";

/// Text of several lines is set off by this.
const INDENT: &str = "    ";

/// The whole answer; tables are kept within `width` columns where there is one.
pub(crate) fn human(value: &Value, width: Option<usize>) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) => object(fields, width, &mut text),
        other => {
            let _ = writeln!(text, "{}", scalar(other));
        }
    }
    text
}

fn object(fields: &Map<String, Value>, width: Option<usize>, text: &mut String) {
    let (mut lines, mut tables) = (Vec::new(), Vec::new());
    lines_of(fields, "", &mut lines, &mut tables);
    let (blocks, short): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(_, value)| value.contains('\n'));
    let widest = short.iter().map(|(name, _)| console::measure_text_width(name)).max().unwrap_or(0);
    for (name, value) in &short {
        let _ =
            writeln!(text, "{}{GAP}{value}", heading(&console::pad_str(name, widest, console::Alignment::Left, None)));
    }
    for (name, value) in &blocks {
        let _ = writeln!(text, "{}", heading(name));
        value.lines().for_each(|line| {
            let _ = writeln!(text, "{INDENT}{line}");
        });
    }
    let only = short.is_empty() && blocks.is_empty() && tables.len() == 1;
    for (name, rows) in tables {
        if !only {
            let _ = writeln!(text, "{}", heading(&name));
        }
        table(rows, width, text);
    }
}

fn heading(name: &str) -> console::StyledObject<&str> {
    console::style(name).cyan()
}

/// Scalars as lines, lists of objects as tables; fields of inner objects have dotted names.
fn lines_of<'a>(
    fields: &'a Map<String, Value>,
    prefix: &str,
    lines: &mut Vec<(String, String)>,
    tables: &mut Vec<(String, &'a [Value])>,
) {
    for (name, value) in in_order(fields) {
        let name = format!("{prefix}{}", printable(name));
        match value {
            Value::Object(inner) if !inner.is_empty() => lines_of(inner, &format!("{name}."), lines, tables),
            Value::Array(rows) if rows.iter().any(Value::is_object) => tables.push((name, rows)),
            other => lines.push((name, scalar(other))),
        }
    }
}

/// What names a thing comes before what describes it.
fn in_order(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, _)| rank(name));
    fields
}

/// Fields that come first, in this order.
const FIRST: [&str; 16] = [
    "name",
    "id",
    "sandboxId",
    "processId",
    "jobId",
    "keyId",
    "zoneId",
    "tool",
    "path",
    "kind",
    "state",
    "status",
    "outcome",
    "age",
    "cpu%",
    "MB",
];

fn rank(name: &str) -> usize {
    FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len())
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text.trim_end_matches('\n')).into_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(", "),
        Value::Object(fields) if fields.is_empty() => "-".to_owned(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{}={}", printable(name), scalar(value)))
            .collect::<Vec<_>>()
            .join(" "),
        // A whole number is one, however it was computed.
        Value::Number(number) if number.as_f64().is_some_and(|double| double.fract() == 0.0 && double.abs() < 1e15) => {
            format!("{:.0}", number.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    }
}

fn table(rows: &[Value], width: Option<usize>, text: &mut String) {
    let mut columns: Vec<&String> = Vec::new();
    for row in rows.iter().filter_map(Value::as_object) {
        for (name, _) in in_order(row) {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
    }
    columns.sort_by_key(|name| rank(name));
    let cell = |row: &Value, name: &String| {
        let value = row.get(name.as_str()).map(scalar).unwrap_or_default();
        // One line, however many the value has.
        let line = value.split_whitespace().collect::<Vec<_>>().join(" ");
        console::truncate_str(&line, WIDEST_CELL, "…").into_owned()
    };
    let widths: Vec<usize> = columns
        .iter()
        .map(|name| {
            let cells = rows.iter().map(|row| console::measure_text_width(&cell(row, name)));
            cells.chain([console::measure_text_width(name)]).max().unwrap_or(0)
        })
        .collect();
    let shown = columns_that_fit(&widths, width);
    let line = |cells: Vec<String>| {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| console::pad_str(cell, *width, console::Alignment::Left, None).into_owned());
        padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    let names = columns.iter().take(shown).map(|name| printable(name).into_owned()).collect();
    let _ = writeln!(text, "{}", heading(&line(names)));
    for row in rows {
        let _ = writeln!(text, "{}", line(columns.iter().take(shown).map(|name| cell(row, name)).collect()));
    }
    if shown < columns.len() {
        let hidden: Vec<_> = columns.iter().skip(shown).map(|name| printable(name)).collect();
        let _ = writeln!(text, "{}", console::style(format!("not shown: {}; --json has all", hidden.join(", "))).dim());
    }
}

/// How many columns there is room for, at least one.
fn columns_that_fit(widths: &[usize], room: Option<usize>) -> usize {
    let Some(room) = room else { return widths.len() };
    let ends = widths.iter().scan(0, |used, width| {
        *used += width + GAP.len();
        Some(*used - GAP.len())
    });
    ends.take_while(|end| *end <= room).count().max(1).min(widths.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain(value: &Value, width: Option<usize>) -> String {
        console::strip_ansi_codes(&human(value, width)).into_owned()
    }

    #[test]
    fn fields_stand_one_a_line_and_what_names_the_thing_first() {
        let value = json!({ "createdAt": "now", "sandboxId": "demo", "labels": {}, "resources": { "cpu": 1.5 }, "tags": ["a", "b"] });
        let expected =
            "sandboxId      demo\ncreatedAt      now\nlabels         -\nresources.cpu  1.5\ntags           a, b\n";
        assert_eq!(plain(&value, None), expected);
    }

    #[test]
    fn a_list_of_objects_is_a_table() {
        let value = json!({ "sandboxes": [
            { "sandboxId": "a", "state": "running", "labels": { "x": "1" } },
            { "sandboxId": "long-name", "state": "sleeping", "keepAlive": true },
        ] });
        let expected =
            "sandboxId  state     labels  keepAlive\na          running   x=1\nlong-name  sleeping          true\n";
        assert_eq!(plain(&value, None), expected);
        let narrow =
            "sandboxId  state\na          running\nlong-name  sleeping\nnot shown: labels, keepAlive; --json has all\n";
        assert_eq!(plain(&value, Some(20)), narrow);
        assert_eq!(plain(&json!({ "sandboxes": [] }), None), "sandboxes  -\n");
    }

    #[test]
    fn text_of_several_lines_is_a_block_and_cannot_move_the_cursor() {
        let value = json!({ "content": "one\n\u{1b}[2Jtwo\n", "size": 8 });
        assert_eq!(plain(&value, None), "size  8\ncontent\n    one\n    \u{fffd}[2Jtwo\n");
    }
}
