use doorbell_cosim::*;
use doorbell_host::contract::*;
use doorbell_host::*;
use std::time::Instant;
fn main() {
    let workers: u32 = std::env::args().nth(1).map_or(1, |s| s.parse().unwrap());
    let n: u32 = std::env::args().nth(2).map_or(64, |s| s.parse().unwrap());
    let tokens: u32 = std::env::args().nth(3).map_or(1000, |s| s.parse().unwrap());
    let config = QueueConfig { token_bytes: 4 * u64::from(n * tokens), workers: None, sq_depth: 1024, cq_depth: 1024, ..Default::default() };
    let descs: Vec<_> = (0..n).map(|k| HwDesc::decode(k, 10, tokens).with_delta_offset(4 * u64::from(k * tokens)).with_user_data(k.into())).collect();
    let rtl = RtlConfig { workers, ..Default::default() };
    let mut platform = RtlPlatform::new(&rtl).unwrap();
    println!("ID {:x?}", platform.read_offset(0).unwrap());
    let mut d = Driver::new(platform, config.clone()).unwrap();
    let t = Instant::now();
    let c0 = d.platform().cycles();
    let mut out = vec![HwCompletion::default(); 1024];
    let (mut sub, mut done) = (0, 0);
    while done < n as usize {
        sub += d.submit(&descs[sub..]).unwrap();
        let k = d.poll(&mut out).unwrap();
        for c in &out[..k] { if done < 3 { println!("{c:?}"); } assert_eq!(c.status, 1); }
        done += k;
    }
    let cyc = d.platform().cycles() - c0;
    let s = t.elapsed().as_secs_f64();
    println!("cosim: {cyc} cycles {s:.3} s {:.1} kcyc/s {:.1} ns/cycle {:.2} Mtok/s", cyc as f64 / s / 1e3, s * 1e9 / cyc as f64, (n * tokens) as f64 / s / 1e6);
    let b = bare_loop(workers, &config, &descs).unwrap();
    let s = b.elapsed.as_secs_f64();
    println!("bare: {} cycles {s:.3} s {:.1} ns/cycle {:.2} Mtok/s", b.cycles, s * 1e9 / b.cycles as f64, (n * tokens) as f64 / s / 1e6);
}
