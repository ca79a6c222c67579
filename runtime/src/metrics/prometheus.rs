//! A [`Status`] in the text formats that Prometheus reads: OpenMetrics, and the plain text before it.

use std::collections::HashSet;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{Kind, Status};
use crate::events::{BUCKET_BOUNDS, Bound, LatencyReport, STAGES};

impl Status {
    /// The text of OpenMetrics 1.0: names begin with `doorbell_`, times are in seconds.
    pub fn prometheus(&self) -> String {
        let mut registry = Registry::with_prefix("doorbell");
        registry.register_collector(Box::new(Exposition(self.clone())));
        let mut out = String::new();
        text::encode(&mut out, &registry).expect("writing to a string does not fail");
        out
    }

    /// The same samples in the text format 0.0.4 of Prometheus, where comments name a counter with its suffix `_total`, and there
    /// are neither units nor an end.
    pub fn prometheus_plain(&self) -> String {
        let open = self.prometheus();
        let counters: HashSet<&str> =
            open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
        let mut out = String::with_capacity(open.len());
        for line in open.lines() {
            let mut words = line.splitn(4, ' ');
            let (mark, what, name, rest) = (words.next(), words.next(), words.next(), words.next());
            match (mark, what, name, rest) {
                (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
                (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                    out.extend(["# ", what, " ", name, "_total ", rest]);
                }
                _ => out.push_str(line),
            }
            out.push('\n');
        }
        out
    }
}

#[derive(Debug)]
struct Exposition(Status);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Exposition(status) = self;
        for (row, values) in status.counters.rows() {
            let kind = match row.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            // The library ends the text with a full stop itself.
            let help = row.help.trim_end_matches('.');
            let mut metric = encoder.encode_descriptor(row.name, help, None, kind)?;
            if row.by_stage {
                for (stage, value) in STAGES.iter().zip(values) {
                    number(metric.encode_family(&[("stage", *stage)])?, row.kind, *value)?;
                }
            } else {
                number(metric, row.kind, values[0])?;
            }
        }

        let help = "Sum of the last scores of all rollouts that were scored";
        encoder
            .encode_descriptor("score_sum", help, None, MetricType::Gauge)?
            .encode_gauge(&status.score_sum)?;
        let help = "Whether the run is over";
        encoder
            .encode_descriptor("ended", help, None, MetricType::Gauge)?
            .encode_gauge(&u64::from(status.ended))?;
        let help = "Since when the run runs";
        encoder
            .encode_descriptor("uptime", help, Some(&Unit::Seconds), MetricType::Gauge)?
            .encode_gauge(&seconds(status.uptime_ns))?;

        let help = "Time with work and without, by thread";
        let mut metric =
            encoder.encode_descriptor("thread_time", help, Some(&Unit::Seconds), MetricType::Counter)?;
        for thread in &status.threads {
            for (state, nanos) in [("busy", thread.busy_ns), ("idle", thread.idle_ns)] {
                metric
                    .encode_family(&[("thread", thread.name.as_str()), ("state", state)])?
                    .encode_counter::<NoLabelSet, _, f64>(&seconds(nanos), None)?;
            }
        }

        let pairs = &status.events.pairs;
        latencies(&mut encoder, "latency", "Latencies; those that are bounds say so", "pair", pairs)?;
        latencies(
            &mut encoder,
            "stage_time",
            "Time that rollouts stayed in a stage",
            "stage",
            &status.events.stages,
        )
    }
}

fn number(mut metric: MetricEncoder<'_>, kind: Kind, value: u64) -> fmt::Result {
    match kind {
        Kind::Counter => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
        Kind::Gauge => metric.encode_gauge(&value),
    }
}

fn latencies(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    label: &str,
    rows: &[LatencyReport],
) -> fmt::Result {
    let bound = |bound| match bound {
        Bound::Exact => "exact",
        Bound::AtMost => "at_most",
        Bound::AtLeast => "at_least",
    };
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for row in rows {
        let bounds = BUCKET_BOUNDS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(row.buckets.iter().copied()).collect();
        metric
            .encode_family(&[(label, row.name.as_str()), ("bound", bound(row.bound))])?
            .encode_histogram::<NoLabelSet>(seconds(row.sum_ns), row.count, &buckets, None)?;
    }
    let help = "Events without their other end";
    let name = format!("{name}_unpaired");
    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    for row in rows {
        number(metric.encode_family(&[(label, row.name.as_str())])?, Kind::Counter, row.unpaired)?;
    }
    Ok(())
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
