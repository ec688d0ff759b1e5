//! The tables of an experiment file as they are written, and their checks.

use super::super::ExperimentError;
use super::super::point::{Axis, Point};
use super::*;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExperiment {
    pub(super) name: String,
    pub(super) title: String,
    #[serde(default)]
    pub(super) source: String,
    #[serde(default)]
    pub(super) about: String,
    #[serde(default = "one")]
    pub(super) seed: u64,
    #[serde(default)]
    pub(super) same_seed: bool,
    #[serde(default = "three")]
    pub(super) passes: usize,
    pub(super) full_passes: Option<usize>,
    pub(super) deadline: Option<String>,
    #[serde(default)]
    pub(super) list: bool,
    pub(super) baseline: String,
    pub(super) pages: Option<Vec<String>>,
    #[serde(default)]
    pub(super) base: BTreeMap<String, Value>,
    pub(super) setups: Vec<Setup>,
    pub(super) sweeps: Vec<RawSweep>,
    #[serde(default)]
    pub(super) why: Vec<RawWhy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawSweep {
    pub(super) name: String,
    #[serde(default)]
    pub(super) title: String,
    #[serde(default)]
    pub(super) about: String,
    pub(super) x: Axis,
    pub(super) y: Option<Axis>,
    #[serde(default)]
    pub(super) base: BTreeMap<String, Value>,
    pub(super) axes: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    pub(super) full: BTreeMap<String, Vec<Value>>,
    pub(super) passes: Option<usize>,
    pub(super) full_passes: Option<usize>,
    pub(super) setups: Option<Vec<String>>,
    #[serde(default)]
    pub(super) documents: Vec<RawFigure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFigure {
    pub(super) what: String,
    pub(super) source: Option<String>,
    pub(super) setup: String,
    pub(super) against: Option<String>,
    #[serde(default)]
    pub(super) at: BTreeMap<String, Value>,
    pub(super) measure: Measure,
    pub(super) value: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWhy {
    pub(super) sweep: Option<String>,
    #[serde(default)]
    pub(super) at: BTreeMap<String, Value>,
    pub(super) text: String,
}

pub(super) const fn one() -> u64 {
    1
}

pub(super) const fn three() -> usize {
    3
}

/// The values that sweeps inherit from their experiment.
pub(super) struct Defaults<'a> {
    pub(super) setups: &'a [Setup],
    pub(super) baseline: usize,
    pub(super) source: &'a str,
    pub(super) base: &'a Point,
    pub(super) passes: usize,
    pub(super) full_passes: usize,
}

impl Defaults<'_> {
    pub(super) fn sweep(&self, raw: RawSweep) -> Result<Sweep, ExperimentError> {
        if !is_name(&raw.name) {
            return Err(ExperimentError::bad_name("sweeps.name", &raw.name));
        }
        let key = format!("sweeps.{}", raw.name);
        let mut base = self.base.clone();
        for (axis, value) in point(&format!("{key}.base"), &raw.base)?.values() {
            base.set(axis, value);
        }
        let axes = axes(&format!("{key}.axes"), &raw.axes)?;
        let full = axes_of_full(&format!("{key}.full"), &raw.full)?;
        for axis in [Some(raw.x), raw.y].into_iter().flatten() {
            if !axes.iter().any(|(own, _)| *own == axis) {
                return Err(ExperimentError::value(
                    key,
                    format!("axes.{} is missing", axis.name()),
                ));
            }
        }
        let setups = match &raw.setups {
            None => (0..self.setups.len()).collect(),
            Some(names) => {
                let named = names
                    .iter()
                    .map(|name| index_of(self.setups, &format!("{key}.setups"), name));
                named
                    .collect::<Result<BTreeSet<_>, _>>()?
                    .into_iter()
                    .collect::<Vec<_>>()
            }
        };
        let figures = raw.documents.into_iter().enumerate();
        let documents = figures.map(|(at, raw)| self.figure(&format!("{key}.documents.{at}"), raw));
        Ok(Sweep {
            documents: documents.collect::<Result<_, _>>()?,
            passes: passes(&key, raw.passes.unwrap_or(self.passes))?,
            full_passes: passes(
                &key,
                raw.full_passes.or(raw.passes).unwrap_or(self.full_passes),
            )?,
            title: if raw.title.is_empty() {
                raw.name.clone()
            } else {
                raw.title
            },
            name: raw.name,
            about: raw.about,
            x: raw.x,
            y: raw.y,
            base,
            axes,
            full,
            setups,
        })
    }

    pub(super) fn figure(&self, key: &str, raw: RawFigure) -> Result<Figure, ExperimentError> {
        if !raw.value.is_finite() {
            return Err(ExperimentError::value(
                format!("{key}.value"),
                "not a finite number",
            ));
        }
        let against = raw.against.as_ref();
        Ok(Figure {
            setup: index_of(self.setups, &format!("{key}.setup"), &raw.setup)?,
            against: against.map_or(Ok(self.baseline), |name| {
                index_of(self.setups, &format!("{key}.against"), name)
            })?,
            at: point(&format!("{key}.at"), &raw.at)?,
            source: raw.source.unwrap_or_else(|| self.source.to_owned()),
            what: raw.what,
            measure: raw.measure,
            value: raw.value,
        })
    }
}

pub(super) fn passes(key: &str, passes: usize) -> Result<usize, ExperimentError> {
    let fits = (1..=1000).contains(&passes);
    if fits {
        Ok(passes)
    } else {
        Err(ExperimentError::value(
            format!("{key}.passes"),
            "not from 1 to 1000",
        ))
    }
}

pub(super) fn checked_setups(setups: Vec<Setup>) -> Result<Vec<Setup>, ExperimentError> {
    check_names("setups", setups.iter().map(|setup| setup.name.as_str()))?;
    for setup in &setups {
        let wrong = |(field, what): (&str, &str)| {
            ExperimentError::value(format!("setups.{}.{field}", setup.name), what)
        };
        check_values(setup)
            .and_then(|()| check_way(setup))
            .map_err(wrong)?;
    }
    Ok(setups)
}

/// Checks each value of a set-up. An error has the key and the reason.
fn check_values(setup: &Setup) -> Result<(), (&'static str, &'static str)> {
    if !is_name(&setup.name) {
        return Err(("name", "not letters, digits, -, _ and ."));
    }
    let parallel = setup.parallel;
    if parallel.is_some_and(|count| !(1..=2000).contains(&count)) {
        return Err(("parallel", "not from 1 to 2000"));
    }
    if setup.visits > 100 {
        return Err(("visits", "more than 100"));
    }
    Ok(())
}

/// Checks that the values of a set-up fit its way.
fn check_way(setup: &Setup) -> Result<(), (&'static str, &'static str)> {
    // The same set-up without the values that only pairs may have.
    let other = Setup {
        push: false,
        session: SessionProtocol::H2,
        resume: false,
        endpoint_options: Vec::new(),
        gateway_options: Vec::new(),
        ..setup.clone()
    };
    if setup.way == Way::Solo && *setup != other {
        return Err((
            "way",
            "session, push, resume, endpoint-options and gateway-options are for way = \"pair\"",
        ));
    }
    let other = Setup {
        visits: 0,
        client_options: Vec::new(),
        ..other
    };
    if !setup.is_ours() && *setup != other {
        return Err((
            "way",
            "session, push, resume, visits and options are for way = \"pair\"",
        ));
    }
    if setup.ahead != Ahead::None && !matches!(setup.way, Way::Http | Way::Https) {
        return Err(("ahead", "only for way = \"http\" and \"https\""));
    }
    if (setup.warm || setup.tls) && !matches!(setup.way, Way::Pair | Way::Nghttpx) {
        let field = if setup.warm { "warm" } else { "tls" };
        return Err((field, "only pairs have a session of their own"));
    }
    if [&setup.near, &setup.far].map(|command| command.is_empty()) != [setup.way != Way::Other; 2] {
        return Err(("near", "near and far are the commands of way = \"other\""));
    }
    if !setup.install.is_empty() && setup.way != Way::Other {
        return Err((
            "install",
            "the remedy for missing programs of way = \"other\"",
        ));
    }
    if setup.tls && setup.session.is_over_udp() {
        return Err(("tls", "this session has its own encryption"));
    }
    if setup.resume && (setup.warm || !setup.session.is_over_udp()) {
        return Err((
            "resume",
            "only sessions of h3+quic and h3+dtls that begin with the load resume",
        ));
    }
    Ok(())
}

pub(super) fn check_names<'a>(
    key: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), ExperimentError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ExperimentError::value(
                key,
                format!("{name:?} is there twice"),
            ));
        }
    }
    if seen.is_empty() || seen.len() > MOST {
        return Err(ExperimentError::value(
            key,
            format!("not from 1 to {MOST} of them"),
        ));
    }
    Ok(())
}

/// Names become parts of file names and of the command line.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 60
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !text.starts_with('.')
}

pub(super) fn index_of(setups: &[Setup], key: &str, name: &str) -> Result<usize, ExperimentError> {
    let known = || {
        setups
            .iter()
            .map(|setup| setup.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let index = setups.iter().position(|setup| setup.name == name);
    index.ok_or_else(|| {
        ExperimentError::value(key, format!("no set-up {name:?}; there are: {}", known()))
    })
}

pub(super) fn point(key: &str, raw: &BTreeMap<String, Value>) -> Result<Point, ExperimentError> {
    let mut point = Point::default();
    for (name, value) in raw {
        point.set(axis(key, name)?, &scalar(&format!("{key}.{name}"), value)?);
    }
    Ok(point)
}

pub(super) fn axes(
    key: &str,
    raw: &BTreeMap<String, Vec<Value>>,
) -> Result<Vec<(Axis, Vec<String>)>, ExperimentError> {
    let axes = axes_of_full(key, raw)?;
    if axes.is_empty() {
        Err(ExperimentError::value(key, "nothing is varied"))
    } else {
        Ok(axes)
    }
}

pub(super) fn axes_of_full(
    key: &str,
    raw: &BTreeMap<String, Vec<Value>>,
) -> Result<Vec<(Axis, Vec<String>)>, ExperimentError> {
    let values = |name: &String, values: &Vec<Value>| {
        let key = format!("{key}.{name}");
        if values.is_empty() {
            return Err(ExperimentError::value(key, "no values"));
        }
        values
            .iter()
            .map(|value| scalar(&key, value))
            .collect::<Result<Vec<_>, _>>()
    };
    raw.iter()
        .map(|(name, list)| Ok((axis(key, name)?, values(name, list)?)))
        .collect()
}

pub(super) fn axis(key: &str, name: &str) -> Result<Axis, ExperimentError> {
    let known = || Axis::ALL.map(Axis::name).join(", ");
    Axis::named(name).ok_or_else(|| {
        ExperimentError::value(
            format!("{key}.{name}"),
            format!("no such axis; there are: {}", known()),
        )
    })
}

pub(super) fn scalar(key: &str, value: &Value) -> Result<String, ExperimentError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        _ => Err(ExperimentError::value(
            key,
            "neither text nor a whole number",
        )),
    }
}

pub(super) fn reason(at: usize, raw: RawWhy, sweeps: &[Sweep]) -> Result<Why, ExperimentError> {
    let key = format!("why.{at}");
    if let Some(name) = raw
        .sweep
        .as_ref()
        .filter(|name| !sweeps.iter().any(|sweep| sweep.name == **name))
    {
        return Err(ExperimentError::value(
            format!("{key}.sweep"),
            format!("no sweep {name:?}"),
        ));
    }
    Ok(Why {
        at: point(&format!("{key}.at"), &raw.at)?,
        sweep: raw.sweep,
        text: raw.text,
    })
}
