-- The tables of version 2, in a schema of their own. Times are milliseconds since 1970.

CREATE TABLE version (number integer NOT NULL);
INSERT INTO version VALUES (2);

-- The states are 0 (accepted), 1 (answered) and 2 (not delivered). "upload" is the time that a lease
-- has for the body. A batch has the collected submissions.
CREATE TABLE submissions (
    id bytea PRIMARY KEY,
    key bytea NOT NULL UNIQUE,
    client text NOT NULL,
    fingerprint bytea NOT NULL,
    server text NOT NULL,
    accepted bigint NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    due bigint NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    upload bigint NOT NULL,
    size bigint NOT NULL,
    ended bigint,
    status integer,
    collected boolean NOT NULL DEFAULT false
);
CREATE INDEX submissions_waiting ON submissions (server, due) WHERE state = 0;
CREATE INDEX submissions_collected ON submissions (server, accepted) WHERE collected;
CREATE INDEX submissions_ended ON submissions (ended) WHERE ended IS NOT NULL;

-- Bodies are not compressed, and queries of states do not read them.
CREATE TABLE contents (
    id bytea PRIMARY KEY,
    path text NOT NULL,
    fields bytea NOT NULL,
    digest bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE answers (
    id bytea PRIMARY KEY,
    fields bytea NOT NULL,
    body bytea NOT NULL
);
ALTER TABLE contents ALTER body SET STORAGE EXTERNAL;
ALTER TABLE answers ALTER body SET STORAGE EXTERNAL;

CREATE TABLE usage (
    client text NOT NULL,
    day bigint NOT NULL,
    submissions bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (client, day)
);

-- Each epoch is a partition, which is dropped as a whole.
CREATE TABLE spent (
    epoch bigint NOT NULL,
    nonce bytea NOT NULL,
    PRIMARY KEY (epoch, nonce)
) PARTITION BY LIST (epoch);

-- The size of all submissions is the sum of these rows, so that admissions rarely wait for the same
-- row.
CREATE TABLE totals (shard smallint PRIMARY KEY, size bigint NOT NULL);
INSERT INTO totals SELECT shard, 0 FROM generate_series(0, 15) AS shard;

CREATE TABLE progress (first_epoch bigint NOT NULL, cleaned bigint);
INSERT INTO progress VALUES (0, NULL);
