#!/bin/sh
# First start of the coordinator's container: let the other nodes connect as any role without a password. They use a network
# of their own (NODES_SUBNET), which has no other members. Citus opens connections between nodes as the role that runs a query.
set -eu
sed -i "1i host all all $NODES_SUBNET trust" "$PGDATA/pg_hba.conf"
