//! Doorbell's driver in front of a socket: what comes is what the golden model says, on every device, with every number of functions.

mod common;

use std::ops::ControlFlow;
use std::time::Instant;

use doorbell_host::{Device, Driver};
use doorbell_trace::Generator;
use doorbell_verify::ModelPlatform;
use doorbell_verify::compare::compare;
use doorbell_verify::replay::{ReplayOptions, ReplayPlan};
use rstest::rstest;

use common::Served;

fn plan(requests: usize) -> ReplayPlan {
    let trace = Generator::new(requests as _, 5, 3).generate().unwrap();
    ReplayPlan::new(&trace, ReplayOptions { checkpoint: 16, ..ReplayOptions::default() }).unwrap()
}

fn serve(kind: &str, functions: u8) -> Served {
    match kind {
        "model" => Served::new(common::model(functions), functions.into()),
        _ => Served::new(common::rtl(functions.into()), functions.into()),
    }
}

/// All functions at once, a thread each.
#[rstest]
fn a_trace_through_the_socket_is_the_golden_models(
    #[values("model", "rtl")] kind: &str,
    #[values(1, 4)] functions: u8,
) {
    let served = serve(kind, functions);
    std::thread::scope(|scope| {
        for function in 0..functions {
            let served = &served;
            scope.spawn(move || {
                let plan = plan(if kind == "model" { 200 } else { 100 });
                let mut devices: Vec<Box<dyn Device>> = vec![
                    Box::new(Driver::new(ModelPlatform::new(), plan.queue_config()).unwrap()),
                    served.device(function.into(), plan.queue_config()),
                ];
                let start = Instant::now();
                for outcome in compare(&plan, &mut devices, &|_, _| ControlFlow::Continue(())) {
                    assert!(outcome.agrees(), "{kind}, function {function}: {outcome:?}");
                }
                println!("{kind} {functions}: {:?}", start.elapsed());
            });
        }
    });
    served.end();
}
