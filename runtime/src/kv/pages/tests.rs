use super::*;
use rstest::rstest;

fn resident(region: &Region) -> usize {
    let mut map = vec![0u8; region.len() / 4096];
    // SAFETY: the range is the region's, and the map has a byte for each of its pages.
    let refused = unsafe { libc::mincore(region.base().as_ptr().cast(), region.len(), map.as_mut_ptr()) };
    assert_eq!(refused, 0, "{}", io::Error::last_os_error());
    map.iter().filter(|&&page| page & 1 == 1).count() * 4096
}

#[rstest]
fn a_region_is_whole_zeroed_resident_pages(
    #[values(PageSize::Base, PageSize::Transparent, PageSize::Huge2M, PageSize::Huge1G)] largest: PageSize,
    #[values(1, 4096, 3 << 20)] bytes: usize,
) {
    let region = Region::new(bytes, PageOptions { largest, lock: false }).unwrap();
    let report = region.report();
    assert!(region.len() >= bytes && report.bytes == region.len());
    assert!(report.page <= largest);
    assert_eq!(region.base().as_ptr() as usize % report.page.bytes(), 0);
    assert_eq!(region.len() % report.page.bytes(), 0);
    assert_eq!(resident(&region), region.len(), "{report}");
    assert_eq!(report.locked, Granted::NotAsked);
    // SAFETY: the region is ours and as long as it says.
    let content = unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.len()) };
    assert!(content.iter().all(|&byte| byte == 0));
    // Each larger page that was asked for has its reason.
    let refused: Vec<_> = report.refused.iter().map(|&(page, _)| page).collect();
    let larger: Vec<_> =
        PageSize::ALL.into_iter().filter(|&page| page <= largest && page > report.page).collect();
    assert_eq!(refused, larger);
    assert!(report.refused.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn a_lock_is_had_or_its_refusal_is_told() {
    let region = Region::new(64 << 10, PageOptions { largest: PageSize::Base, lock: true }).unwrap();
    match &region.report().locked {
        Granted::Yes => {}
        Granted::Refused(reason) => assert!(reason.contains("ulimit -l"), "{reason}"),
        Granted::NotAsked => panic!("it was asked for"),
    }
}

#[test]
fn an_impossible_size_is_an_error() {
    assert!(Region::new(usize::MAX, PageOptions::default()).is_err());
    assert!(Region::new(1 << 60, PageOptions::default()).is_err());
}

#[test]
fn a_report_reads_as_a_line() {
    let report = PageReport {
        bytes: 4096,
        page: PageSize::Base,
        refused: vec![(PageSize::Huge2M, "Cannot allocate memory".into())],
        prefault: Prefault::Populated,
        locked: Granted::Refused("Operation not permitted; see ulimit -l".into()),
        placement: Placement::Bound(1),
    };
    assert_eq!(
        report.to_string(),
        "4096 bytes on pages of 4 KiB; no 2 MiB: Cannot allocate memory; populated; not locked: Operation not \
         permitted; see ulimit -l; bound to NUMA node 1"
    );
}
