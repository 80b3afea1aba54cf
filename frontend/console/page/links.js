// Addresses of pages.

const link = (page, name, tab) => `#/${page}/${encodeURIComponent(name)}${tab && `/${tab}`}`;

export const streamLink = (name, tab = "") => link("streams", name, tab);

export const groupLink = (name) => link("groups", name, "");

export const queueLink = (name, tab = "") => link("queues", name, tab);

export const topicLink = (name, tab = "") => link("topics", name, tab);

export const subscriptionLink = (topic, id) => `${topicLink(topic, "subscriptions")}/${id}`;
