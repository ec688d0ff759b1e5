//! Media queries and lengths, as far as they decide which resources are fetched: Media Queries
//! Level 4 and CSS Values Level 4.
//!
//! An unsupported query gives `None`: callers then take the choice that costs less when it is
//! wrong.

/// The window of the browser, in CSS pixels, and its device pixels per CSS pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Viewport {
    pub(super) width: f32,
    pub(super) height: f32,
    pub(super) ratio: f32,
}

/// Parentheses inside parentheses that are followed.
const MAX_DEPTH: usize = 16;
/// CSS pixels of one `em` where no other font size is known.
const EM: f32 = 16.0;

/// Returns true if a list of queries matches a screen of this size; an empty list does.
pub(super) fn matches(list: &str, viewport: Viewport) -> Option<bool> {
    let list = list.to_ascii_lowercase();
    if list.trim().is_empty() {
        return Some(true);
    }
    any(split_top(&list, ',').map(|query| matches_query(query.trim(), viewport)))
}

fn matches_query(query: &str, viewport: Viewport) -> Option<bool> {
    let mut rest = query;
    let first = take_word(&mut rest);
    let negated = first == "not" && !rest.starts_with('(');
    let kind = if negated || first == "only" {
        take_word(&mut rest)
    } else {
        first
    };
    if kind.is_empty() || kind == "not" {
        return condition(query, viewport, 0);
    }
    let screen = Some(matches!(kind, "all" | "screen"));
    let result = if rest.is_empty() {
        screen
    } else if take_word(&mut rest) == "and" {
        all([screen, condition(rest, viewport, 0)].into_iter())
    } else {
        Some(false)
    };
    if negated {
        result.map(|matched| !matched)
    } else {
        result
    }
}

/// `(…) and (…)`, `(…) or (…)`, `not (…)`.
fn condition(text: &str, viewport: Viewport, depth: usize) -> Option<bool> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut rest = text.trim();
    if rest.starts_with("not") {
        take_word(&mut rest);
        return operand(&mut rest, viewport, depth).map(|matched| !matched);
    }
    let mut result = operand(&mut rest, viewport, depth);
    while !rest.is_empty() {
        let word = take_word(&mut rest);
        let next = operand(&mut rest, viewport, depth);
        result = match word {
            "and" => all([result, next].into_iter()),
            "or" => any([result, next].into_iter()),
            _ => return None,
        };
    }
    result
}

fn operand(rest: &mut &str, viewport: Viewport, depth: usize) -> Option<bool> {
    if rest.starts_with("not") {
        take_word(rest);
    }
    let inner = take_group(rest)?.trim();
    if inner.starts_with('(') || inner.starts_with("not ") || inner.starts_with("not(") {
        return condition(inner, viewport, depth + 1);
    }
    feature(inner, viewport)
}

fn feature(text: &str, viewport: Viewport) -> Option<bool> {
    if let Some((name, value)) = text.split_once(':') {
        return plain_feature(name.trim(), value.trim(), viewport);
    }
    if text.contains(['<', '>', '=']) {
        return range_feature(text, viewport);
    }
    match text {
        "width"
        | "height"
        | "color"
        | "hover"
        | "any-hover"
        | "pointer"
        | "any-pointer"
        | "resolution"
        | "aspect-ratio"
        | "orientation"
        | "prefers-color-scheme" => Some(true),
        "monochrome"
        | "grid"
        | "prefers-reduced-motion"
        | "prefers-reduced-data"
        | "prefers-contrast"
        | "forced-colors"
        | "inverted-colors" => Some(false),
        _ if is_foreign(text) => Some(false),
        _ => None,
    }
}

/// Returns true for features that only other browsers know. They do not match; many rules of old
/// style sheets are for them.
fn is_foreign(name: &str) -> bool {
    ["-moz-", "-o-", "-ms-", "min--moz-", "max--moz-"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn plain_feature(name: &str, value: &str, viewport: Viewport) -> Option<bool> {
    if is_foreign(name) || value.ends_with("\\0") || value.ends_with("\\9") {
        return Some(false);
    }
    let name = name.strip_prefix("-webkit-").unwrap_or(name);
    if let Some(name) = name.strip_prefix("min-") {
        return Some(measure(name, viewport)? >= quantity(value, viewport)?);
    }
    if let Some(name) = name.strip_prefix("max-") {
        return Some(measure(name, viewport)? <= quantity(value, viewport)?);
    }
    let usual = match name {
        "orientation" => return Some((value == "landscape") == (viewport.width > viewport.height)),
        "prefers-color-scheme" => "light",
        "prefers-reduced-motion"
        | "prefers-contrast"
        | "prefers-reduced-data"
        | "prefers-reduced-transparency" => "no-preference",
        "hover" | "any-hover" => "hover",
        "pointer" | "any-pointer" => "fine",
        "forced-colors" | "inverted-colors" => "none",
        "scripting" => "enabled",
        "display-mode" => "browser",
        "update" => "fast",
        _ => {
            let (ours, asked) = (measure(name, viewport)?, quantity(value, viewport)?);
            return Some((ours - asked).abs() < 0.001);
        }
    };
    Some(value == usual)
}

/// `width >= 600px`, `600px <= width < 900px`.
fn range_feature(text: &str, viewport: Viewport) -> Option<bool> {
    let mut result = Some(true);
    let mut left: Option<f32> = None;
    let mut sign = "";
    let mut rest = text;
    loop {
        let end = rest.find(['<', '>', '=']).unwrap_or(rest.len());
        let (side, after) = rest.split_at(end);
        let side = side.trim();
        let value = measure(side, viewport).or_else(|| quantity(side, viewport))?;
        if let Some(left) = left {
            result = all([result, Some(compare(left, sign, value)?)].into_iter());
        }
        if after.is_empty() {
            return result;
        }
        let length = if after[1..].starts_with('=') { 2 } else { 1 };
        (sign, rest) = after.split_at(length);
        left = Some(value);
    }
}

fn compare(left: f32, sign: &str, right: f32) -> Option<bool> {
    match sign {
        "<" => Some(left < right),
        "<=" => Some(left <= right),
        ">" => Some(left > right),
        ">=" => Some(left >= right),
        "=" => Some((left - right).abs() < 0.001),
        _ => None,
    }
}

/// Returns the value of the feature `name` in this viewport.
fn measure(name: &str, viewport: Viewport) -> Option<f32> {
    match name {
        "width" | "device-width" => Some(viewport.width),
        "height" | "device-height" => Some(viewport.height),
        "resolution" | "device-pixel-ratio" => Some(viewport.ratio),
        "aspect-ratio" | "device-aspect-ratio" => Some(viewport.width / viewport.height),
        "color" => Some(8.0),
        "monochrome" | "grid" => Some(0.0),
        _ => None,
    }
}

/// A length in pixels, a resolution in dots per pixel, a ratio or a number.
fn quantity(text: &str, viewport: Viewport) -> Option<f32> {
    if let Some((over, under)) = text.split_once('/') {
        return Some(over.trim().parse::<f32>().ok()? / under.trim().parse::<f32>().ok()?);
    }
    resolution(text).or_else(|| length(text, viewport))
}

/// `2x`, `2dppx`, `192dpi` in dots per CSS pixel.
pub(super) fn resolution(text: &str) -> Option<f32> {
    for (unit, scale) in [
        ("dppx", 1.0),
        ("dpi", 1.0 / 96.0),
        ("dpcm", 2.54 / 96.0),
        ("x", 1.0),
    ] {
        if let Some(number) = text
            .strip_suffix(unit)
            .and_then(|number| number.parse::<f32>().ok())
        {
            return Some(number * scale).filter(|number| number.is_finite());
        }
    }
    None
}

/// A length in CSS pixels: with a unit, or computed (`calc()`, `min()`, `max()`, `clamp()`). Lower
/// case.
pub(super) fn length(text: &str, viewport: Viewport) -> Option<f32> {
    let mut sum = Sum {
        rest: text.trim(),
        viewport,
    };
    let value = sum.sum(0)?;
    (sum.rest.trim().is_empty() && value.is_finite()).then_some(value)
}

/// Reads an arithmetic expression from left to right.
struct Sum<'a> {
    rest: &'a str,
    viewport: Viewport,
}

impl Sum<'_> {
    fn sum(&mut self, depth: usize) -> Option<f32> {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take_sign(&['+', '-']) {
            let next = self.product(depth)?;
            value = if sign == '+' {
                value + next
            } else {
                value - next
            };
        }
        Some(value)
    }

    fn product(&mut self, depth: usize) -> Option<f32> {
        let mut value = self.term(depth)?;
        while let Some(sign) = self.take_sign(&['*', '/']) {
            let next = self.term(depth)?;
            value = if sign == '*' {
                value * next
            } else {
                value / next
            };
        }
        Some(value)
    }

    fn take_sign(&mut self, signs: &[char]) -> Option<char> {
        let rest = self.rest.trim_start();
        let sign = rest.chars().next().filter(|sign| signs.contains(sign))?;
        self.rest = &rest[1..];
        Some(sign)
    }

    fn term(&mut self, depth: usize) -> Option<f32> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.rest = self.rest.trim_start();
        let name = self
            .rest
            .bytes()
            .take_while(|b| b.is_ascii_alphabetic() || *b == b'-')
            .count();
        if self.rest[name..].starts_with('(') {
            let (name, rest) = self.rest.split_at(name);
            self.rest = &rest[1..];
            return self.function(name, depth + 1);
        }
        self.number()
    }

    fn function(&mut self, name: &str, depth: usize) -> Option<f32> {
        let mut value = self.sum(depth)?;
        let low = value;
        let mut count = 1;
        while self.take_sign(&[',']).is_some() {
            let next = self.sum(depth)?;
            count += 1;
            value = match (name, count) {
                ("min", _) | ("clamp", 3) => value.min(next),
                ("max", _) => value.max(next),
                ("clamp", 2) => next,
                _ => return None,
            };
        }
        self.take_sign(&[')'])?;
        match name {
            "clamp" => (count == 3).then(|| value.max(low)),
            "" | "calc" | "-webkit-calc" if count == 1 => Some(value),
            "min" | "max" => Some(value),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<f32> {
        let bytes = self.rest.as_bytes();
        let sign = usize::from(bytes.first().is_some_and(|b| matches!(b, b'+' | b'-')));
        let digits = bytes[sign..]
            .iter()
            .take_while(|b| b.is_ascii_digit() || **b == b'.')
            .count();
        let (number, rest) = self.rest.split_at(sign + digits);
        let unit = rest.bytes().take_while(|b| b.is_ascii_alphabetic()).count();
        let (unit, rest) = rest.split_at(unit);
        self.rest = rest;
        Some(number.parse::<f32>().ok()? * self.unit(unit)?)
    }

    /// CSS pixels of one `unit`.
    fn unit(&self, unit: &str) -> Option<f32> {
        let Viewport { width, height, .. } = self.viewport;
        Some(match unit {
            "" | "px" => 1.0,
            "vw" | "svw" | "lvw" | "dvw" | "vi" => width / 100.0,
            "vh" | "svh" | "lvh" | "dvh" | "vb" => height / 100.0,
            "vmin" => width.min(height) / 100.0,
            "vmax" => width.max(height) / 100.0,
            "em" | "rem" => EM,
            "ch" | "ex" => EM / 2.0,
            "in" => 96.0,
            "cm" => 96.0 / 2.54,
            "mm" => 9.6 / 2.54,
            "pt" => 96.0 / 72.0,
            "pc" => 16.0,
            _ => return None,
        })
    }
}

fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(true);
    for part in parts {
        match part {
            Some(false) => return Some(false),
            None => result = None,
            Some(true) => {}
        }
    }
    result
}

fn any(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(parts.map(|part| part.map(|matched| !matched))).map(|matched| !matched)
}

/// Takes a word and the space after it.
fn take_word<'a>(rest: &mut &'a str) -> &'a str {
    *rest = rest.trim_start();
    let end = rest
        .find(|c: char| c.is_ascii_whitespace() || c == '(')
        .unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.trim_start();
    word
}

/// Takes `(…)` and the space after it, and returns the text inside.
fn take_group<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let inner = rest.trim_start().strip_prefix('(')?;
    let mut depth = 1;
    for (at, c) in inner.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            *rest = inner[at + 1..].trim_start();
            return Some(&inner[..at]);
        }
    }
    None
}

/// The parts of `text` between `separator`s that stand in no parentheses.
pub(super) fn split_top(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && c == separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Viewport = Viewport {
        width: 1280.0,
        height: 720.0,
        ratio: 1.0,
    };

    #[test]
    fn queries() {
        let cases = [
            ("", Some(true)),
            ("all", Some(true)),
            ("screen", Some(true)),
            ("PRINT", Some(false)),
            ("print, screen", Some(true)),
            ("print, speech", Some(false)),
            ("not print", Some(true)),
            ("only screen and (max-width: 600px)", Some(false)),
            (
                "only screen and (min-width:600px) and (max-width:80em)",
                Some(true),
            ),
            ("(min-width: 1281px)", Some(false)),
            ("(min-width:0\\0)", Some(false)),
            (
                "only screen and (-webkit-min-device-pixel-ratio:1.5), (min--moz-device-pixel-ratio:1.5), \
                 (-o-min-device-pixel-ratio:3/2), (min-resolution:1.5dppx)",
                Some(false),
            ),
            (
                "screen and (-ms-high-contrast: active), (-ms-high-contrast: none)",
                Some(false),
            ),
            ("all and (-moz-images-in-menus)", Some(false)),
            ("(width >= 600px)", Some(true)),
            ("(600px <= width < 1280px)", Some(false)),
            ("(400px < width <= 1280px)", Some(true)),
            ("(orientation: portrait)", Some(false)),
            ("(orientation: landscape)", Some(true)),
            (
                "(-webkit-min-device-pixel-ratio: 1.5), (min-resolution: 144dpi)",
                Some(false),
            ),
            ("(max-resolution: 1.25dppx)", Some(true)),
            ("(prefers-color-scheme: dark)", Some(false)),
            ("not (prefers-color-scheme: dark)", Some(true)),
            ("(prefers-reduced-motion)", Some(false)),
            (
                "((min-width: 100px) and (not (max-width: 90px))) or (grid)",
                Some(true),
            ),
            ("(min-aspect-ratio: 16/9)", Some(true)),
            ("(hover: hover) and (pointer: fine)", Some(true)),
            ("(some-new-feature: 1)", None),
            ("print and (some-new-feature)", Some(false)),
            ("screen, (some-new-feature)", Some(true)),
            ("screen (", Some(false)),
            ("((((", None),
        ];
        for (query, expected) in cases {
            assert_eq!(matches(query, SCREEN), expected, "{query}");
        }
        assert_eq!(matches(&"(".repeat(5_000), SCREEN), None);
        assert_eq!(
            matches(
                &format!("{}width{}", "(".repeat(100), ")".repeat(100)),
                SCREEN
            ),
            None
        );
    }

    #[test]
    fn lengths() {
        let cases = [
            ("100vw", Some(1280.0)),
            ("50.5vw", Some(646.4)),
            ("300px", Some(300.0)),
            ("20em", Some(320.0)),
            ("0", Some(0.0)),
            ("calc(100vw - 80px)", Some(1200.0)),
            ("calc((100vw - 2 * 40px) / 3)", Some(400.0)),
            ("min(50vw, 500px)", Some(500.0)),
            ("max(10px, 1vw, 5px)", Some(12.8)),
            ("clamp(100px, 50vw, 400px)", Some(400.0)),
            ("clamp(100px, 1px, 400px)", Some(100.0)),
            ("calc(100px", None),
            ("clamp(1px, 2px)", None),
            ("calc(1px, 2px)", None),
            ("calc(1px / 0)", None),
            ("50%", None),
            ("auto", None),
            ("", None),
            ("\u{e4}px", None),
        ];
        for (text, expected) in cases {
            let found = length(text, SCREEN);
            let close = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 0.01_f32,
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(close, "{text}: {found:?}");
        }
        assert_eq!(length(&"(".repeat(5_000), SCREEN), None);
    }
}
