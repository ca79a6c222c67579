//! Who scores the rollouts of a run, and by what.

use clap::ValueEnum;
use doorbell_devices::Kind;
use doorbell_engine::{Ranges, RewardModel};
use doorbell_host::Device;
use doorbell_runtime::pipeline::{RewardStage, Scoring};
use doorbell_runtime::reward::{DeviceRewards, QueueRewards, Scale};

use super::Args;
use crate::failure::Failure;

/// Who scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    /// Judges on threads of the host.
    Host,
    /// The device by itself, at checkpoints (flag RESIDENT).
    Resident,
    /// The device, asked by REWARD descriptors.
    Device,
}

impl Who {
    /// What the pipeline is told.
    pub fn scoring(self) -> Scoring {
        match self {
            Who::Resident => Scoring::Resident,
            Who::Host | Who::Device => Scoring::Stage,
        }
    }
}

/// By what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// Reward model 0: folds the digest of the tokens.
    Digest,
    /// Reward model 1: counts the tokens that lie in ranges.
    Ranges,
}

impl From<Model> for RewardModel {
    fn from(model: Model) -> RewardModel {
        match model {
            Model::Digest => RewardModel::Digest,
            Model::Ranges => RewardModel::Ranges,
        }
    }
}

/// Ranges of tokens, none of them empty, though a device takes empty ones. Boxed, as they are longer than all other options together.
pub fn ranges(text: &str) -> Result<Box<Ranges>, String> {
    let ranges = doorbell_devices::ranges(text)?;
    if let Some((_, part)) = ranges.iter().zip(text.split('+')).find(|((first, last), _)| first > last) {
        return Err(format!(
            "'{part}' holds no token: the last is below the first; give the lower one first, as 0..99"
        ));
    }
    Ok(Box::new(ranges))
}

/// A score, as Q16.16 holds it.
pub fn threshold(text: &str) -> Result<f64, String> {
    let score: f64 = text.parse().map_err(|_| format!("'{text}' is no number"))?;
    if (0.0..32768.0).contains(&score) {
        Ok(score)
    } else {
        Err("expected a score from 0 to below 32768".into())
    }
}

/// Checks what the options of rewards say together, beyond what each says.
pub fn check(args: &Args, kind: Kind) -> Result<(), Failure> {
    let with = |option: &str, given: bool, why: &str| match given {
        true => Err(Failure::input(format!(
            "{option} cannot be used with --reward {}: {why}",
            format!("{:?}", args.reward).to_lowercase()
        ))),
        false => Ok(()),
    };
    match args.reward {
        Who::Host => with("--reward-queue", args.reward_queue, "judges of the host need no queue pair")?,
        Who::Resident => {
            with("--reward-queue", args.reward_queue, "the device scores where it decodes")?;
            with("--judge-group", args.judge_group, "no judge has the answers")?;
            with(
                "--reward-model ranges",
                args.reward_model == Model::Ranges,
                "a RESIDENT device scores by the digest",
            )?;
        }
        Who::Device => {}
    }
    if args.reward != Who::Host {
        let why = "they are of judges on the host";
        with("--rules", args.rules.is_some(), why)?;
        with("--inject-judge", !args.inject_judge.is_empty(), why)?;
    }
    match (args.reward_model, &args.reward_ranges) {
        (Model::Digest, Some(_)) => {
            return Err(Failure::input(
                "--reward-ranges are of --reward-model ranges, and the model is digest",
            ));
        }
        (Model::Ranges, None) => {
            return Err(Failure::input(
                "--reward-model ranges counts tokens in ranges, and there are none; give --reward-ranges, as 0..999+5000..5999",
            ));
        }
        (Model::Ranges, _) if args.rules.is_some() => {
            return Err(Failure::input(
                "--rules and --reward-model ranges both say how to score; give one of them",
            ));
        }
        _ => {}
    }
    if args.reward_queue && args.queues > 8 {
        return Err(Failure::input(format!(
            "--reward-queue gives each queue pair another one: --queues {0} need {1} on the {kind}, and a device has at most \
             16; give at most --queues 8",
            args.queues,
            2 * u32::from(args.queues)
        )));
    }
    Ok(())
}

/// The device as the reward stage, on the queue pairs beside it if there are any.
pub fn stage(
    args: &Args,
    device: &dyn Device,
    beside: Vec<Box<dyn Device>>,
    slots: u32,
    threshold: i32,
) -> Result<Box<dyn RewardStage>, Failure> {
    let scale = Scale { model: args.reward_model.into(), threshold };
    let told = |error| Failure::input(format!("{error} (--reward host)"));
    Ok(if args.reward_queue {
        Box::new(QueueRewards::new(beside, slots, scale).map_err(told)?)
    } else {
        Box::new(DeviceRewards::new(device.name(), device.features(), slots, scale).map_err(told)?)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(0.0))]
    #[case("32767.9", Some(32767.9))]
    #[case("32768", None)]
    #[case("-0.1", None)]
    #[case("NaN", None)]
    #[case("much", None)]
    fn thresholds_are_scores(#[case] text: &str, #[case] expected: Option<f64>) {
        assert_eq!(threshold(text).ok(), expected);
    }
}
