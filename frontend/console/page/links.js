// Addresses of pages.

export const queueLink = (name, tab = "") => `#/queues/${encodeURIComponent(name)}${tab && `/${tab}`}`;
