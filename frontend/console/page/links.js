// Addresses of pages.

const link = (page, name, tab) => `#/${page}/${encodeURIComponent(name)}${tab && `/${tab}`}`;

export const queueLink = (name, tab = "") => link("queues", name, tab);
