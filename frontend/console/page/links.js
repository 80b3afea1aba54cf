// Addresses of pages.

const link = (page, name, tab) => `#/${page}/${encodeURIComponent(name)}${tab && `/${tab}`}`;

export const streamLink = (name, tab = "") => link("streams", name, tab);

export const groupLink = (name) => link("groups", name, "");

export const queueLink = (name, tab = "") => link("queues", name, tab);
