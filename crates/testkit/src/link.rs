//! A link with delay, bandwidth and faults between a client and a server: a TCP proxy.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Bytes that travel as one.
const PIECE_LEN: usize = 16 << 10;

/// Pieces on their way in one direction of a connection.
const PIECES_MAX: usize = 1024;

/// What a link does to bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkOptions {
    /// Delay of one direction: half of a round trip.
    pub delay: Duration,
    /// Bytes in a second and direction, of all connections together; 0 for no limit.
    pub rate: u64,
    /// Bytes from the server after which each connection is cut; 0 for never.
    pub cut_after: u64,
}

/// A link. It ends with its process.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    options: LinkOptions,
    /// When each direction is free again.
    free: [Mutex<Instant>; 2],
    is_down: AtomicBool,
    connection_count: AtomicU64,
    received_len: AtomicU64,
}

impl Link {
    /// Starts a link from a new port of this machine to `target`.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(target: SocketAddr, options: LinkOptions) -> std::io::Result<Self> {
        Self::listen(TcpListener::bind("127.0.0.1:0")?, target, options)
    }

    /// As [`Link::start`], from a port that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn listen(
        listener: TcpListener,
        target: SocketAddr,
        options: LinkOptions,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            options,
            free: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            is_down: AtomicBool::new(false),
            connection_count: AtomicU64::new(0),
            received_len: AtomicU64::new(0),
        });
        let link = Self {
            shared: shared.clone(),
            address,
        };
        spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = shared.clone();
                spawn(move || shared.connect(client));
            }
        });
        Ok(link)
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets all bytes of both directions vanish, or no longer.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Connections so far.
    pub fn connection_count(&self) -> u64 {
        self.shared.connection_count.load(Ordering::Relaxed)
    }

    /// Bytes from the server so far.
    pub fn received_len(&self) -> u64 {
        self.shared.received_len.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn connect(self: Arc<Self>, client: TcpStream) {
        self.connection_count.fetch_add(1, Ordering::Relaxed);
        // The handshake takes a round trip, too.
        sleep(self.options.delay * 2);
        let Ok(server) = TcpStream::connect(self.target) else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (Ok(from_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
            return;
        };
        let twin = self.clone();
        spawn(move || twin.carry(0, from_client, server));
        self.carry(1, from_server, client);
    }

    /// Carries bytes in one direction until either side ends.
    fn carry(self: Arc<Self>, direction: usize, mut from: TcpStream, to: TcpStream) {
        let (sender, receiver) = sync_channel(PIECES_MAX);
        let Ok(other) = to.try_clone() else { return };
        spawn(move || deliver(&receiver, to));
        let mut carried = 0;
        let mut piece = vec![0; PIECE_LEN];
        while let Ok(len) = from.read(&mut piece) {
            if len == 0 || !self.carry_piece(direction, &piece[..len], &sender) {
                break;
            }
            carried += len as u64;
            let limit = self.options.cut_after;
            if direction == 1 && limit > 0 && carried >= limit {
                let _ = (
                    other.shutdown(Shutdown::Both),
                    from.shutdown(Shutdown::Both),
                );
                return;
            }
        }
    }

    /// Carries one piece; returns whether the other side is still there.
    fn carry_piece(
        &self,
        direction: usize,
        piece: &[u8],
        sender: &SyncSender<(Instant, Vec<u8>)>,
    ) -> bool {
        if self.is_down.load(Ordering::Relaxed) {
            return true;
        }
        if direction == 1 {
            self.received_len
                .fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        let mut due = Instant::now();
        if self.options.rate > 0 {
            let time = Duration::from_secs_f64(piece.len() as f64 / self.options.rate as f64);
            let mut free = self.free[direction].lock().expect("no thread panics here");
            *free = (*free).max(due) + time;
            due = *free;
        }
        sender
            .send((due + self.options.delay, piece.to_vec()))
            .is_ok()
    }
}

/// Writes each piece when it is due.
fn deliver(receiver: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    while let Ok((due, piece)) = receiver.recv() {
        sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
