-- What the two steps write in the databases of the libraries that we are compared with: people with tags, and their messages.
CREATE TABLE contacts (id bigint PRIMARY KEY, wallet_address text NOT NULL, tags text[] NOT NULL DEFAULT '{}') WITH (fillfactor = 80);
CREATE TABLE messages (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    contact_id  bigint NOT NULL REFERENCES contacts (id),
    title       text NOT NULL,
    body        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
INSERT INTO contacts (id, wallet_address)
SELECT number, '0x' || lpad(to_hex(number), 40, '0') FROM generate_series(0, 19999) AS number;
