//! AllReduce over a tree: sums go up to the root, the result comes down.

use super::block::{Aborted, Block};
use super::combine::Reduction;
use super::conn::{End, Way};
use super::func::Function;
use super::place::Field;
use super::ring::Part;
use super::step::{Cut, Step};

/// Children a rank may have.
const CHILDREN: usize = 3;
const NOBODY: i32 = -1;

struct Tree<'b, 'a> {
    block: &'b Block<'a>,
    function: Function,
    part: &'b Part,
    cut: Cut,
}

// SAFETY: the part's buffers belong to the launch; the two directions use different ones (see `run`).
unsafe impl Sync for Tree<'_, '_> {}

/// Does one rank's side of `part`.
pub(super) fn run(block: &Block<'_>, function: Function, part: &Part) -> Result<(), Aborted> {
    let channel = &block.layout.channel;
    let up = block.channel.get(channel.tree_up);
    let children = (0..CHILDREN).map(|i| block.channel.get(Field::<i32>::new(channel.tree_down).nth(i)));
    let down: Vec<i32> = children.take_while(|c| *c != NOBODY).collect();
    let tree = Tree { block, function, part, cut: Cut::new(block, function.proto, false) };
    if up == NOBODY {
        return tree.pass(&down, &down, true, true);
    }
    // both ways at once, as on a GPU: the sum of a chunk goes up while the result of one before comes down; a chunk's
    // result comes only when its input has been read, so that both may be in one buffer
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bed-block".into());
        let upwards = thread.spawn_scoped(scope, || tree.pass(&down, &[up], true, false));
        let upwards = upwards.unwrap_or_else(|e| super::unsupported(&format!("no thread for a tree: {e}")));
        let downwards = tree.pass(&[up], &down, false, true);
        upwards.join().unwrap_or(Err(Aborted)).and(downwards)
    })
}

impl Tree<'_, '_> {
    /// Takes every chunk from `from` and gives it to `to`, with the rank's own input and/or to its output.
    fn pass(&self, from: &[i32], to: &[i32], input: bool, output: bool) -> Result<(), Aborted> {
        let (block, part) = (self.block, self.part);
        let open = |peers: &[i32], way| -> Vec<End<'_>> {
            peers.iter().map(|p| End::open(block, *p, way, 0, self.function.proto, self.cut.unit())).collect()
        };
        let (mut from, mut to) = (open(from, Way::Recv), open(to, Way::Send));
        let op: &Reduction = &part.op;
        let result = part.rounds.iter().try_for_each(|round| {
            let (at, n) = round.chunk(0);
            let at = at * op.elem.size();
            let step = Step {
                from: &mut from,
                to: &mut to,
                input: input.then(|| part.send.wrapping_add(at)),
                output: output.then(|| part.recv.wrapping_add(at)),
                finish: input && output,
            };
            // SAFETY: the launch's buffers are valid for its counts, as NCCL requires of its caller.
            unsafe { step.run(block, op, self.cut, n) }
        });
        from.into_iter().chain(to).for_each(End::close);
        result
    }
}
