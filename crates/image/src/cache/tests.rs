use super::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Barrier, mpsc};
use weald_format::ErrorKind;

/// Bytes that are counted as long as they are alive.
struct Counted {
    bytes: Vec<u8>,
    alive: Arc<AtomicU64>,
}

impl Counted {
    fn new(len: usize, fill: u8, alive: &Arc<AtomicU64>) -> Self {
        alive.fetch_add(len as u64, Ordering::SeqCst);
        Self {
            bytes: vec![fill; len],
            alive: alive.clone(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive
            .fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
    }
}

impl Weigh for Counted {
    fn memory_len(&self) -> usize {
        self.bytes.len()
    }
}

fn digest(no: u8) -> Digest {
    Digest::of(&[no])
}

fn view<V: Weigh>(cache: &Arc<SharedCache>, image: u8, room: Room) -> ByteCache<u64, V> {
    ByteCache::new(&cache.tag(&digest(image), 1), room, None)
}

fn limit(cache: &SharedCache) -> u64 {
    cache.budget.entries_max()
}

fn used(cache: &SharedCache) -> u64 {
    cache.budget.used.load(Ordering::SeqCst)
}

#[derive(Debug, Clone)]
enum Step {
    Load { key: u64, len: usize },
    Fail { key: u64 },
    Remove { key: u64 },
    Limit { len_max: u64 },
    Rest,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..20u64;
    let step = prop_oneof![
        8 => (key.clone(), 0..6000usize).prop_map(|(key, len)| Step::Load { key, len }),
        1 => key.clone().prop_map(|key| Step::Fail { key }),
        1 => key.prop_map(|key| Step::Remove { key }),
        1 => (0..40_000u64).prop_map(|len_max| Step::Limit { len_max }),
        1 => Just(Step::Rest),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Would catch: a value of another key, bytes that are counted twice or never, entries beyond
    /// the limit.
    #[test]
    fn it_holds_what_was_loaded_and_no_more_than_its_limit(steps in steps(), room_no in 0..2) {
        let room = if room_no == 0 { Room::Blocks } else { Room::Pages };
        let (cache, alive) = (SharedCache::new(ByteLen(20_000)), Arc::default());
        let view: ByteCache<u64, Counted> = view(&cache, 1, room);
        let mut lens = BTreeMap::new();
        for step in steps {
            match step {
                Step::Load { key, len } => {
                    let was_there = view.contains(&key);
                    let value = view.get_or_load(&key, || Ok(Counted::new(len, key as u8, &alive)));
                    let value = value.unwrap();
                    let known = *lens.get(&key).unwrap_or(&len);
                    prop_assert_eq!(value.bytes.len(), if was_there { known } else { len });
                    prop_assert!(value.bytes.iter().all(|&b| b == key as u8));
                    lens.insert(key, value.bytes.len());
                    if len as u64 + ENTRY_LEN <= limit(&cache) && view.pages_are_few() {
                        prop_assert!(view.contains(&key));
                    }
                }
                Step::Fail { key } => {
                    let was_there = view.contains(&key);
                    let value = view.get_or_load(&key, || Err(Error::invalid("no")));
                    prop_assert_eq!(value.is_ok(), was_there);
                }
                Step::Remove { key } => {
                    view.remove(&key);
                    prop_assert!(!view.contains(&key));
                }
                Step::Limit { len_max } => cache.set_len_max(ByteLen(len_max)),
                Step::Rest => cache.rest(),
                Step::Clear => view.clear(),
            }
            prop_assert!(used(&cache) <= limit(&cache));
            let held = (0..20).filter(|key| view.contains(key));
            let held: u64 = held.map(|key| lens[&key] as u64 + ENTRY_LEN).sum();
            prop_assert_eq!(held, used(&cache));
        }
        drop(view);
        prop_assert_eq!(used(&cache), 0);
        prop_assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
}

impl ByteCache<u64, Counted> {
    /// Nothing but the values of one view is in the caches of these tests: blocks are never kept
    /// from the room of pages.
    fn pages_are_few(&self) -> bool {
        self.room == Room::Pages || self.tag.cache.pages.used() == 0
    }
}

/// Would catch: a limit that holds for each shard or each kind, or only when nobody else is at
/// work.
#[test]
fn many_threads_never_hold_more_than_the_limit() {
    const LIMIT: u64 = 1 << 20;
    const THREADS: u64 = 8;
    const LEN_MAX: u64 = 50_000;
    let (cache, alive) = (
        SharedCache::new(ByteLen(LIMIT)),
        Arc::<AtomicU64>::default(),
    );
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, alive, most) = (&cache, &alive, &most);
            scope.spawn(move || {
                let rooms = [Room::Blocks, Room::Pages];
                let views = rooms.map(|room| view::<Counted>(cache, (thread % 3) as u8, room));
                for no in 0..3000u64 {
                    let random = spread(thread << 32 | no);
                    let key = random % 200;
                    let len = 1 + spread(key) % LEN_MAX;
                    let load = || Ok(Counted::new(len as usize, key as u8, alive));
                    let view = &views[(random >> 60) as usize % 2];
                    drop(view.get_or_load(&key, load).unwrap());
                    most.fetch_max(alive.load(Ordering::SeqCst), Ordering::SeqCst);
                    assert!(used(cache) <= LIMIT);
                }
            });
        }
    });
    // What a thread has just loaded or just taken out is in its hands, not in the cache.
    let most = most.into_inner();
    assert!(most <= LIMIT + THREADS * 2 * LEN_MAX, "{most}");
    assert!(most > LIMIT / 2, "{most}");
    assert_eq!(alive.load(Ordering::SeqCst), 0, "images are closed");
}

/// Would catch: two threads that decode the same block at a time.
#[test]
fn loads_of_one_key_are_merged() {
    for len_max in [0, 1 << 20] {
        let cache = SharedCache::new(ByteLen(len_max));
        let view = view::<Vec<u8>>(&cache, 1, Room::Blocks);
        let (loads, asked) = (AtomicUsize::new(0), Barrier::new(5));
        let (sender, receiver) = mpsc::channel::<()>();
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            let (view, loads, asked, receiver) = (&view, &loads, &asked, &receiver);
            let first = scope.spawn(move || {
                view.get_or_load(&7, || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    asked.wait();
                    receiver.lock().recv().unwrap();
                    Ok(vec![7; 100])
                })
            });
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        asked.wait();
                        view.get_or_load(&7, || {
                            loads.fetch_add(1, Ordering::SeqCst);
                            Ok(vec![7; 100])
                        })
                    })
                })
                .collect();
            sender.send(()).unwrap();
            let all = std::iter::once(first).chain(others);
            all.for_each(|thread| assert_eq!(**thread.join().unwrap().unwrap(), [7; 100]));
        });
        // Without a cache, who comes late loads again.
        let loads = loads.into_inner();
        assert!(loads == 1 || len_max == 0 && loads <= 5, "{loads}");
    }
}

/// Would catch: threads that wait for ever for one that failed.
#[test]
fn who_waits_for_a_load_that_fails_or_panics_tries_itself() {
    for panics in [false, true] {
        let cache = SharedCache::new(ByteLen(1 << 20));
        let view = view::<Vec<u8>>(&cache, 1, Room::Pages);
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            let (view, begun) = (&view, &begun);
            let loader = scope.spawn(move || {
                view.get_or_load(&1, || {
                    begun.wait();
                    assert!(!panics, "as the test wants it");
                    Err(Error::invalid("as the test wants it"))
                })
                .map(|_| ())
            });
            begun.wait();
            assert_eq!(*view.get_or_load(&1, || Ok(vec![3])).unwrap(), [3]);
            match loader.join() {
                Ok(result) => assert!(!panics && result.is_err()),
                Err(_) => assert!(panics),
            }
        });
        assert!(view.contains(&1));
    }
}

/// Would catch: a thread that waits for itself, where damage has a record need itself.
#[test]
fn what_needs_itself_is_an_error() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let view = view::<Vec<u8>>(&cache, 1, Room::Pages);
    let error = view.get_or_load(&1, || {
        view.get_or_load(&1, || Ok(vec![1])).map(|v| v.to_vec())
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn images_of_one_digest_share_and_others_do_not() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let [one, same, other] = [1, 1, 2].map(|image| view::<Vec<u8>>(&cache, image, Room::Blocks));
    one.get_or_load(&5, || Ok(vec![5])).unwrap();
    assert!(same.contains(&5) && !other.contains(&5));
    let generation: ByteCache<u64, Vec<u8>> =
        ByteCache::new(&cache.tag(&digest(1), 2), Room::Blocks, None);
    assert!(!generation.contains(&5));
    drop(one);
    assert!(same.contains(&5));
    drop(same);
    assert_eq!(used(&cache), 0);
    assert!(!view::<Vec<u8>>(&cache, 1, Room::Blocks).contains(&5));
}

/// Would catch: blocks that drive the tree's pages out, or pages that leave no room for blocks.
#[test]
fn blocks_and_pages_each_have_what_is_sure_to_them() {
    const LEN: usize = 10_000;
    let cache = SharedCache::new(ByteLen(4 << 20));
    let [blocks, pages] = [Room::Blocks, Room::Pages].map(|room| view::<Vec<u8>>(&cache, 1, room));
    let fill = |view: &ByteCache<u64, Vec<u8>>, from: u64| {
        (from..from + 1000)
            .for_each(|key| drop(view.get_or_load(&key, || Ok(vec![0; LEN])).unwrap()));
    };
    let room = |ring: &Ring| ring.used();
    let (all, sure) = (limit(&cache), cache.budget.page_len.load(Ordering::SeqCst));
    let spare = 2 * LEN as u64;
    fill(&pages, 0);
    assert!(room(&cache.pages) > all - spare, "nobody else is there");
    fill(&blocks, 0);
    assert!(room(&cache.pages).abs_diff(sure) <= spare);
    assert!(room(&cache.blocks) > all - sure - 2 * spare);
    fill(&pages, 5000);
    assert!(room(&cache.blocks) > all - sure - 2 * spare);
    let large = all - sure + 2 * spare;
    blocks
        .get_or_load(&9999, || Ok(vec![0; large as usize]))
        .unwrap();
    assert!(!blocks.contains(&9999) && room(&cache.blocks) > all - sure - 2 * spare);
}

/// Says that it is large.
struct Large(usize);

impl Weigh for Large {
    fn memory_len(&self) -> usize {
        self.0
    }
}

/// Would catch: a tree that is read once here and there and takes all the memory that nobody else
/// has taken.
#[test]
fn pages_take_a_part_of_a_large_cache() {
    for (cache_len, most) in [
        (64 << 20, 64 << 20),
        (1 << 30, 96 << 20),
        (16 << 30, 1 << 30),
    ] {
        let cache = SharedCache::new(ByteLen(cache_len));
        let [blocks, pages] = [Room::Blocks, Room::Pages].map(|room| view(&cache, 1, room));
        let fill = |view: &ByteCache<u64, Large>| {
            for key in 0..20_000 {
                view.get_or_load(&key, || Ok(Large(1 << 20))).unwrap();
            }
        };
        for room in [&pages, &blocks, &pages] {
            fill(room);
            let used = cache.pages.used();
            assert!(used <= most, "{used} of {cache_len}");
            assert!(
                used > most * 9 / 10 || cache.blocks.used() > 0,
                "{used} of {cache_len}"
            );
        }
        assert!(used(&cache) > limit(&cache) - (2 << 20));
    }
}

/// Would catch: entries that go although they are used all the time, while others are there that
/// nobody asks for.
#[test]
fn what_is_asked_for_stays() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let blocks = view::<Vec<u8>>(&cache, 1, Room::Blocks);
    let (mut loads, mut once) = (0, 100u64);
    for _ in 0..100 {
        for key in 0..5u64 {
            let load = || {
                loads += 1;
                Ok(vec![0; 40_000])
            };
            blocks.get_or_load(&key, load).unwrap();
        }
        for _ in 0..5 {
            once += 1;
            blocks.get_or_load(&once, || Ok(vec![0; 40_000])).unwrap();
        }
    }
    assert_eq!(loads, 5);
}

#[test]
fn what_nobody_asks_for_is_let_go() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let blocks = view::<Vec<u8>>(&cache, 1, Room::Blocks);
    (0..10u64).for_each(|key| drop(blocks.get_or_load(&key, || Ok(vec![0; 1000])).unwrap()));
    cache.rest();
    assert!((0..10).all(|key| blocks.contains(&key)));
    assert!(blocks.get(&3).is_some());
    cache.rest();
    assert_eq!((0..10).filter(|key| blocks.contains(key)).count(), 1);
    cache.rest();
    assert_eq!(cache.counts().used_len, 0);
}
