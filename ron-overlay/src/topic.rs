//! What a host does on a topic: publish, subscribe, leave.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use ron_core::{CallError, Capacity, Deadline, NodeId, Overflow};

use crate::{
    Contact, Overlay, OverlayError, Settings, Subscription, Validator,
    engine::Command,
    logic::{
        gossip::Counts,
        message::{MessageId, TopicId},
    },
    metrics::BACKPRESSURE,
    subscription::{self, SUBSCRIPTION},
};

/// How long a node that waits for neighbours pauses between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is left for the last try of whoever waits for room: a call of the engine takes no longer, unless that is busy.
const LAST_TRY: Duration = Duration::from_millis(5);

/// What a topic is to this node.
#[derive(Clone)]
pub(crate) struct TopicOptions {
    name: String,
    is_signed: bool,
    overflow: Overflow,
    message_bytes_max: Option<usize>,
    validator: Option<Arc<dyn Validator>>,
}

impl TopicOptions {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_signed(&self) -> bool {
        self.is_signed
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.overflow
    }

    pub(crate) fn rejects_newest(&self) -> bool {
        self.overflow == Overflow::RejectNewest
    }

    pub(crate) fn validator(&self) -> Option<&Arc<dyn Validator>> {
        self.validator.as_ref()
    }

    pub(crate) fn message_bytes_max(&self, settings: &Settings) -> usize {
        self.message_bytes_max.unwrap_or(settings.message_bytes_max).min(settings.message_bytes_max)
    }

    pub(crate) fn is_same(&self, other: &TopicOptions) -> bool {
        let same_validator = match (&self.validator, &other.validator) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_validator
            && (self.is_signed, self.overflow, self.message_bytes_max)
                == (other.is_signed, other.overflow, other.message_bytes_max)
    }
}

impl fmt::Debug for TopicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicOptions")
            .field("name", &self.name)
            .field("is_signed", &self.is_signed)
            .field("overflow", &self.overflow)
            .field("is_validated", &self.validator.is_some())
            .finish_non_exhaustive()
    }
}

/// A topic that is about to be joined. See [`Overlay::topic`].
#[derive(Debug)]
pub struct TopicBuilder {
    overlay: Overlay,
    options: TopicOptions,
}

impl TopicBuilder {
    pub(crate) fn new(overlay: Overlay, name: String) -> Self {
        let options = TopicOptions {
            name,
            is_signed: true,
            overflow: Overflow::default(),
            message_bytes_max: None,
            validator: None,
        };
        TopicBuilder { overlay, options }
    }

    /// Messages carry no signature: whoever relays one can change it, and claim anybody as its publisher. All nodes on a
    /// topic must say the same. Saves some 50 µs for each message and node, and 96 bytes.
    #[must_use]
    pub fn unsigned(mut self) -> Self {
        self.options.is_signed = false;
        self
    }

    /// What happens on a link that has no room: by default a publication is refused with `Busy` and a relayed message is
    /// shed; with [`Overflow::ShedOldest`] the oldest that waits makes room. Either way the peer is told, and repair
    /// fetches what was shed.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.options.overflow = overflow;
        self
    }

    /// Bytes of the largest message on this topic, within [`message_bytes_max`](Settings::message_bytes_max). Larger ones
    /// are rejected.
    #[must_use]
    pub fn message_bytes_max(mut self, bytes: usize) -> Self {
        self.options.message_bytes_max = Some(bytes);
        self
    }

    /// Judges messages of others before they are delivered and relayed.
    #[must_use]
    pub fn validator(mut self, validator: impl Validator) -> Self {
        self.options.validator = Some(Arc::new(validator));
        self
    }

    /// Enters the topic through `contacts`. Without any, the node waits for others to come. It returns as soon as this
    /// node takes part; [`Topic::joined`] waits for a neighbour. Dropping the future may leave the topic joined.
    ///
    /// # Errors
    /// [`OverlayError::Joined`] if it is joined with other options, [`OverlayError::Busy`], [`OverlayError::Timeout`],
    /// [`OverlayError::Canceled`].
    pub async fn join(
        self,
        contacts: impl IntoIterator<Item = Contact>,
        deadline: Deadline,
    ) -> Result<Topic, OverlayError> {
        let TopicBuilder { overlay, options } = self;
        let id = TopicId::of(&options.name);
        let (options, contacts) = (Arc::new(options), contacts.into_iter().collect());
        let engine = overlay.node.engine_of(&id);
        let joining = engine.call("join", deadline, |reply| Command::Join {
            topic: id,
            options: Arc::clone(&options),
            contacts,
            reply,
        });
        joining.await??;
        Ok(Topic { overlay: overlay.clone(), id, options })
    }
}

/// What a publisher learns of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The name of the message.
    pub id: MessageId,
    /// When this node's numbering of messages began, in milliseconds since 1970. With `seq` it identifies the message in a
    /// [`Gap`](crate::Gap) that others report.
    pub since: u64,
    /// The message's number in that numbering, from 1.
    pub seq: u64,
    /// Links that it was pushed over at once. The other neighbours are told of it.
    pub pushed: usize,
    /// Neighbours on the topic. With none, the message waits here for whoever joins and asks: about half a minute, or up to
    /// an hour while it is this node's last.
    pub neighbours: usize,
}

/// How a topic is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicStatus {
    /// What it is called between nodes.
    pub id: TopicId,
    /// What it is called here.
    pub name: String,
    /// The neighbours.
    pub neighbours: Vec<NodeId>,
    /// Nodes that are known and no neighbours.
    pub spares: usize,
    /// Broadcast trees.
    pub trees: usize,
    /// Subscribers on this node.
    pub subscribers: usize,
    /// Messages that this node has published.
    pub published: u64,
    /// Messages of others that were delivered here.
    pub delivered: u64,
    /// Bytes of messages that are kept for others.
    pub kept_bytes: usize,
    /// What was counted on the way of messages.
    pub counts: Counts,
}

/// A topic that this node is on. Cloning shares it. Dropping it changes nothing: [`leave`](Self::leave) leaves.
#[derive(Debug, Clone)]
pub struct Topic {
    overlay: Overlay,
    id: TopicId,
    options: Arc<TopicOptions>,
}

impl Topic {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.options.name()
    }

    /// What it is called between nodes.
    #[must_use]
    pub fn id(&self) -> TopicId {
        self.id
    }

    /// Publishes a message if there is room for it now on every link that it would be pushed over. Dropping the future
    /// before it is taken up publishes nothing.
    ///
    /// # Errors
    /// [`OverlayError::Busy`] with the time to wait when a link or a queue is full; nothing was published.
    /// [`OverlayError::FrameTooLarge`], [`OverlayError::NotJoined`], [`OverlayError::Timeout`],
    /// [`OverlayError::Canceled`].
    pub async fn publish(
        &self,
        payload: impl Into<Bytes>,
        deadline: Deadline,
    ) -> Result<Receipt, OverlayError> {
        let (payload, topic, node) = (payload.into(), self.id, &self.overlay.node);
        let max = self.options.message_bytes_max(&node.settings());
        if payload.len() > max {
            let bytes = payload.len() as u64;
            return Err(OverlayError::FrameTooLarge { what: "message", bytes, max: max as u64 });
        }
        let engine = node.engine_of(&topic);
        engine.call("publish", deadline, |reply| Command::Publish { topic, payload, reply }).await?
    }

    /// Publishes a message as soon as there is room for it. Dropping the future before it is taken up publishes nothing.
    ///
    /// # Errors
    /// [`OverlayError::Backpressure`] if there was no room until the deadline, or a few milliseconds before it; else as
    /// [`publish`](Self::publish).
    pub async fn publish_when_free(
        &self,
        payload: impl Into<Bytes>,
        deadline: Deadline,
    ) -> Result<Receipt, OverlayError> {
        let payload = payload.into();
        loop {
            match self.publish(payload.clone(), deadline).await {
                Err(OverlayError::Busy { what, retry_after }) => {
                    let left = deadline.remaining();
                    if left <= LAST_TRY {
                        self.overlay.node.metrics.tally(BACKPRESSURE, "deadline").add(1);
                        return Err(OverlayError::Backpressure { what });
                    }
                    // The pause is when there is likely to be room, and there may be some before: a caller with less time
                    // than that tries once more at its end.
                    tokio::time::sleep(retry_after.min(left - LAST_TRY)).await;
                }
                done => return done,
            }
        }
    }

    /// The messages of others from now on.
    ///
    /// # Errors
    /// [`OverlayError::NotJoined`], [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn subscribe(&self, deadline: Deadline) -> Result<Subscription, OverlayError> {
        let room = self.overlay.node.settings().subscription_lane;
        self.subscribe_with(room, deadline).await
    }

    /// As [`subscribe`](Self::subscribe), with room for so many messages that wait.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe), and [`OverlayError::Config`] for no room at all.
    pub async fn subscribe_with(
        &self,
        room: usize,
        deadline: Deadline,
    ) -> Result<Subscription, OverlayError> {
        let (topic, node) = (self.id, &self.overlay.node);
        let spec = SUBSCRIPTION.with_capacity(Capacity::new("room", room)?);
        let told = node.egress.tallies.missed.clone();
        let (subscriber, subscription) =
            subscription::open(spec, &self.overlay.subscriptions, &node.metrics, told);
        let engine = node.engine_of(&topic);
        let command = |reply| Command::Subscribe { topic, subscriber, reply };
        engine.call("subscribe", deadline, command).await??;
        Ok(subscription)
    }

    /// Waits until this node has a neighbour on the topic. Dropping the future gives up waiting.
    ///
    /// # Errors
    /// [`OverlayError::NoNeighbour`] at the deadline, [`OverlayError::NotJoined`], [`OverlayError::Canceled`].
    pub async fn joined(&self, deadline: Deadline) -> Result<(), OverlayError> {
        loop {
            match self.status(deadline).await {
                Ok(status) if !status.neighbours.is_empty() => return Ok(()),
                Ok(_) if deadline.has_passed() => return Err(OverlayError::NoNeighbour),
                Ok(_) | Err(OverlayError::Busy { .. }) => {
                    tokio::time::sleep(LOOK_EVERY.min(deadline.remaining())).await;
                }
                Err(OverlayError::Timeout { .. }) => return Err(OverlayError::NoNeighbour),
                Err(error) => return Err(error),
            }
        }
    }

    /// More nodes that may be on the topic.
    ///
    /// # Errors
    /// [`OverlayError::Busy`], [`OverlayError::Canceled`].
    pub fn meet(&self, contacts: impl IntoIterator<Item = Contact>) -> Result<(), OverlayError> {
        let command = Command::Meet { topic: self.id, contacts: contacts.into_iter().collect() };
        self.overlay.node.engine_of(&self.id).tell(command).map_err(CallError::into)
    }

    /// How the topic is doing.
    ///
    /// # Errors
    /// [`OverlayError::NotJoined`], [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn status(&self, deadline: Deadline) -> Result<TopicStatus, OverlayError> {
        let (topic, engine) = (Some(self.id), self.overlay.node.engine_of(&self.id));
        let found = engine.call("status", deadline, |reply| Command::Status { topic, reply }).await?;
        found.into_iter().next().ok_or(OverlayError::NotJoined)
    }

    /// Leaves: neighbours are told, and whom to turn to instead; subscriptions end. What was said is on its way when this
    /// returns, in the queues of the links. Dropping the future may leave the topic all the same.
    ///
    /// # Errors
    /// [`OverlayError::NotJoined`], [`OverlayError::Busy`], [`OverlayError::Timeout`], [`OverlayError::Canceled`].
    pub async fn leave(&self, deadline: Deadline) -> Result<(), OverlayError> {
        let (topic, engine) = (self.id, self.overlay.node.engine_of(&self.id));
        engine.call("leave", deadline, |reply| Command::Leave { topic, reply }).await?
    }
}
