//! Random requests against a schema with every kind of column.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value as Json, json};

/// The database of the parity tests.
pub const DATABASE: &str = "Parity";

/// Every kind of column, constraint and reference.
pub fn schema() -> Json {
    let reference = |table: &str, weak: bool| match weak {
        true => json!({"type": "uuid", "refTable": table, "refType": "weak"}),
        false => json!({"type": "uuid", "refTable": table}),
    };
    let many = |key: Json| json!({"type": {"key": key, "min": 0, "max": "unlimited"}});
    json!({"name": DATABASE, "version": "1.0.0", "tables": {
        "Root": {"isRoot": true, "maxRows": 12, "indexes": [["name", "i"]], "columns": {
            "name": {"type": "string"},
            "i": {"type": {"key": {"type": "integer", "minInteger": -5, "maxInteger": 10}}},
            "oi": {"type": {"key": "integer", "min": 0, "max": 1}},
            "si": {"type": {"key": "integer", "min": 0, "max": 4}},
            "r": {"type": "real"},
            "sr": {"type": {"key": {"type": "real", "minReal": -8.0, "maxReal": 8.0}, "min": 1, "max": 3}},
            "b": {"type": "boolean"},
            "e": {"type": {"key": {"type": "string", "enum": ["set", ["", "x", "y"]]}}},
            "ei": {"type": {"key": {"type": "integer", "enum": ["set", [1, 2, 3]]}, "min": 0, "max": 2}},
            "s": {"type": {"key": {"type": "string", "maxLength": 3}}},
            "ss": many(json!("string")),
            "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
            "mi": {"type": {"key": "string", "value": {"type": "integer", "maxInteger": 9}, "min": 0, "max": 3}},
            "ki": {"type": {"key": "integer", "value": "real", "min": 0, "max": 2}},
            "im": {"type": "string", "mutable": false},
            "kids": many(reference("Kid", false)),
            "one": {"type": {"key": reference("Kid", false), "min": 0, "max": 1}},
            "weak": many(reference("Kid", true)),
            "need": {"type": {"key": reference("Root", true), "min": 0, "max": 2}},
            "mk": {"type": {"key": "string", "value": reference("Kid", false), "min": 0, "max": "unlimited"}},
            "mw": {"type": {"key": reference("Kid", true), "value": "string", "min": 0, "max": "unlimited"}},
            "u": {"type": {"key": "uuid", "min": 0, "max": 1}},
        }},
        "Kid": {"indexes": [["tag"]], "columns": {
            "tag": {"type": {"key": "integer", "min": 0, "max": 1}},
            "next": {"type": {"key": reference("Kid", false), "min": 0, "max": 1}},
            "back": {"type": {"key": reference("Root", true), "min": 0, "max": 1}},
        }},
        "Anchor": {"isRoot": true, "columns": {
            "must": {"type": {"key": reference("Root", true), "min": 1, "max": 3}},
            "n": {"type": "integer"},
        }},
        "Solo": {"isRoot": true, "maxRows": 2, "columns": {"n": {"type": "integer"}}},
    }})
}

/// Makes requests.
pub struct Requests {
    rng: StdRng,
    schema: Json,
    /// The operation being made has its one fault already: of several a server
    /// may report any.
    spoiled: bool,
    /// UUIDs that rows may get, and got.
    pub pool: Vec<String>,
}

const WORDS: [&str; 6] = ["", "a", "b", "c", "xy", "long"];

impl Requests {
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let uuid = |_| uuid::Uuid::from_u128(rng.random()).to_string();
        let pool = (0..12).map(uuid).collect();
        Self { rng, schema: schema(), spoiled: false, pool }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// Whether to make a mistake here.
    fn mistake(&mut self, percent: u32) -> bool {
        let spoil = !self.spoiled && self.chance(percent);
        self.spoiled |= spoil;
        spoil
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items.choose(&mut self.rng).unwrap().clone()
    }

    /// The operations of a transaction.
    pub fn transaction(&mut self) -> Vec<Json> {
        let count = self.rng.random_range(1..=4);
        (0..count).flat_map(|_| self.operations()).collect()
    }

    fn table(&mut self) -> String {
        self.pick(&["Root", "Root", "Root", "Kid", "Kid", "Anchor", "Solo"]).to_owned()
    }

    fn column(&mut self, table: &str) -> (String, Json) {
        let columns: Vec<(String, Json)> =
            self.schema["tables"][table]["columns"].as_object().unwrap().clone().into_iter().collect();
        let (name, column) = self.pick(&columns);
        (name, column["type"].clone())
    }

    fn operations(&mut self) -> Vec<Json> {
        let table = self.table();
        self.spoiled = false;
        match self.rng.random_range(0..100) {
            0..=34 => self.insert(&table),
            35..=46 => vec![self.update(&table)],
            47..=71 => vec![self.mutate(&table)],
            72..=79 => vec![json!({"op": "delete", "table": table, "where": self.one_row(&table)})],
            80..=88 => vec![self.select(&table)],
            89..=93 => vec![self.wait(&table)],
            94..=96 => vec![self.pick(&[
                json!({"op": "comment", "comment": "hello"}),
                json!({"op": "commit", "durable": false}),
                json!({"op": "abort"}),
                json!({"op": "assert", "lock": "nobodys"}),
            ])],
            _ => vec![self.malformed(&table)],
        }
    }

    fn insert(&mut self, table: &str) -> Vec<Json> {
        let mut row = Map::new();
        for (name, column) in self.schema["tables"][table]["columns"].as_object().unwrap().clone() {
            if self.chance(if name == "name" || name == "must" { 90 } else { 25 }) {
                let value = self.value(&column["type"]);
                row.insert(name, value);
            }
        }
        let mut insert = json!({"op": "insert", "table": table, "row": row});
        if self.chance(50) {
            insert["uuid"] = self.some_uuid().into();
        }
        let name = format!("r{}", self.rng.random_range(0..3));
        let named = self.chance(60);
        if named {
            insert["uuid-name"] = name.clone().into();
        }
        if table == "Kid" && named && self.chance(80) {
            let column = self.pick(&["kids", "one", "weak"]);
            let adopt = json!({"op": "mutate", "table": "Root", "where": self.one_row("Root"),
                "mutations": [[column, "insert", ["named-uuid", name]]]});
            return vec![insert, adopt];
        }
        vec![insert]
    }

    fn update(&mut self, table: &str) -> Json {
        let mut row = Map::new();
        for _ in 0..self.rng.random_range(0..3) {
            let (name, ty) = self.column(table);
            if name == "im" && !self.mistake(20) {
                continue;
            }
            let value = self.value(&ty);
            row.insert(name, value);
        }
        json!({"op": "update", "table": table, "where": self.rows(table), "row": row})
    }

    fn mutate(&mut self, table: &str) -> Json {
        let mutations: Vec<Json> = (0..self.rng.random_range(1..3)).map(|_| self.mutation(table)).collect();
        json!({"op": "mutate", "table": table, "where": self.rows(table), "mutations": mutations})
    }

    fn mutation(&mut self, table: &str) -> Json {
        let (name, ty) = self.column(table);
        let key = atom_type(&ty);
        let many = max(&ty) > 1 || min(&ty) == 0;
        let verbs: &[&str] = match (key.as_str(), ty.get("value").is_some(), many) {
            _ if self.mistake(8) => &["+=", "-=", "*=", "/=", "%=", "insert", "delete", "^="],
            _ if name == "im" => return self.mutation(table),
            ("integer", false, true) => &["+=", "-=", "*=", "/=", "%=", "insert", "delete"],
            ("integer", false, false) => &["+=", "-=", "*=", "/=", "%="],
            ("real", false, true) => &["+=", "-=", "*=", "/=", "insert", "delete"],
            ("real", false, false) => &["+=", "-=", "*=", "/="],
            (_, _, true) => &["insert", "delete"],
            _ => return self.mutation(table),
        };
        let verb = self.pick(verbs);
        if ["insert", "delete"].contains(&verb) {
            let value = self.value(&ty);
            // Keys alone, as a set.
            if let (Some([_, Json::Array(pairs)]), true) =
                (value.as_array().map(Vec::as_slice), ty.get("value").is_some())
                && verb == "delete"
                && self.chance(40)
            {
                let keys: Vec<Json> = pairs.iter().map(|pair| pair[0].clone()).collect();
                return json!([name, verb, ["set", keys]]);
            }
            return json!([name, verb, value]);
        }
        // A real server (3.5.0) checks a product for overflow by dividing by the operand,
        // so that a negative number times zero ends it with SIGFPE.
        let least = i64::from(verb == "*=");
        let operand = self.rng.random_range(least..4);
        let operand = if key == "real" { json!(operand as f64 / 2.0) } else { json!(operand) };
        json!([name, verb, operand])
    }

    fn select(&mut self, table: &str) -> Json {
        let mut select = json!({"op": "select", "table": table, "where": self.rows(table)});
        if self.chance(60) {
            let mut columns: Vec<String> =
                (0..self.rng.random_range(0..4)).map(|_| self.column(table).0).collect();
            if self.chance(50) {
                columns.push("_uuid".into());
            }
            if !self.mistake(5) {
                columns.sort();
                columns.dedup();
            }
            select["columns"] = json!(columns);
        }
        select
    }

    fn wait(&mut self, table: &str) -> Json {
        let (name, ty) = self.column(table);
        let rows: Vec<Json> =
            (0..self.rng.random_range(0..3)).map(|_| json!({&name: self.value(&ty)})).collect();
        let until = self.pick(&["==", "!=", "!="]);
        json!({"op": "wait", "table": table, "where": self.rows(table), "columns": [name],
            "until": until, "rows": rows, "timeout": 0})
    }

    /// Something that is wrong by itself.
    fn malformed(&mut self, table: &str) -> Json {
        self.spoiled = true;
        let mut operation = match self.rng.random_range(0..5) {
            0 => self.update(table),
            1 => self.mutate(table),
            2 => self.select(table),
            3 => self.wait(table),
            _ => self.insert(table).remove(0),
        };
        let members = operation.as_object_mut().unwrap();
        let names: Vec<String> = members.keys().cloned().collect();
        match self.rng.random_range(0..6) {
            0 => drop(members.insert("surplus".into(), json!(1))),
            1 => drop(members.remove(&self.pick(&names))),
            2 => drop(members.insert(self.pick(&names), json!(5))),
            3 => drop(members.insert("table".into(), json!("Nowhere"))),
            4 => drop(members.insert("where".into(), json!([["nothing", "==", 1]]))),
            _ => drop(members.insert("row".into(), json!({"nothing": 1}))),
        }
        operation
    }

    /// A `where` for one row, most likely.
    fn one_row(&mut self, table: &str) -> Json {
        if self.chance(10) {
            return self.rows(table);
        }
        json!([["_uuid", "==", ["uuid", self.some_uuid()]]])
    }

    fn rows(&mut self, table: &str) -> Json {
        match self.rng.random_range(0..20) {
            0..=9 => self.one_row_surely(),
            10..=11 => json!([]),
            12 => json!([self.pick(&[true, false])]),
            13..=18 => json!([self.condition(table)]),
            _ => json!([self.condition(table), self.condition(table)]),
        }
    }

    fn one_row_surely(&mut self) -> Json {
        json!([["_uuid", self.pick(&["==", "==", "==", "includes"]), ["uuid", self.some_uuid()]]])
    }

    /// A condition, also for monitors.
    pub fn condition(&mut self, table: &str) -> Json {
        let (name, ty) = self.column(table);
        let any = ["==", "!=", "<", "<=", ">", ">=", "includes", "excludes", "=~"];
        let unordered = ["==", "!=", "includes", "excludes", "includes"];
        let function = match (self.mistake(5), is_ordered(&ty)) {
            (true, _) => self.pick(&any),
            (false, true) => self.pick(&any[..8]),
            (false, false) => self.pick(&unordered),
        };
        json!([name, function, self.value(&ty)])
    }

    /// Conditions that are right.
    pub fn good_conditions(&mut self) -> Json {
        let least = self.rng.random_range(-5..10);
        let word = self.pick(&WORDS);
        self.pick(&[
            json!([["i", ">", least]]),
            json!([["i", "<=", least], ["name", "==", word]]),
            json!([["ss", "includes", word]]),
            json!([["b", "==", true]]),
            json!([true]),
            json!([false]),
            json!([]),
        ])
    }

    fn some_uuid(&mut self) -> String {
        let pool = self.pool.clone();
        self.pick(&pool)
    }

    fn value(&mut self, ty: &Json) -> Json {
        let (key, value) = match ty.get("key") {
            Some(key) => (key.clone(), ty.get("value").cloned()),
            None => (ty.clone(), None),
        };
        let min = ty.get("min").and_then(Json::as_u64).unwrap_or(1);
        let max = ty.get("max").map_or(1, |max| max.as_u64().unwrap_or(4)).min(4);
        let count =
            if self.mistake(3) { self.rng.random_range(0..6) } else { self.rng.random_range(min..=max) };
        if self.chance(2) {
            return self.pick(&[
                json!(null),
                json!(1.5),
                json!(["set"]),
                json!(["map", [["a"]]]),
                json!("a"),
                json!(true),
            ]);
        }
        if let Some(value) = value {
            let mut pairs: Vec<Json> =
                (0..count).map(|_| json!([self.atom(&key), self.atom(&value)])).collect();
            if !self.mistake(3) {
                pairs.sort_by_key(|pair| pair[0].to_string());
                pairs.dedup_by_key(|pair| pair[0].to_string());
            }
            return json!(["map", pairs]);
        }
        let mut atoms: Vec<Json> = (0..count).map(|_| self.atom(&key)).collect();
        if !self.mistake(3) {
            atoms.sort_by_key(Json::to_string);
            atoms.dedup_by_key(|atom| atom.to_string());
        }
        match atoms.as_slice() {
            [atom] if self.chance(80) => atom.clone(),
            _ => json!(["set", atoms]),
        }
    }

    fn atom(&mut self, base: &Json) -> Json {
        if self.mistake(1) {
            return self.pick(&[json!("odd"), json!(77), json!(-77), json!(["uuid", "x"]), json!([])]);
        }
        let allowed = base.pointer("/enum/1").and_then(Json::as_array).cloned();
        let number = |name: &str, usual: i64| base.get(name).and_then(Json::as_i64).unwrap_or(usual);
        let (least, most) = (number("minInteger", -6), number("maxInteger", 11));
        match base.get("type").unwrap_or(base).as_str().unwrap() {
            _ if allowed.is_some() => self.pick(&allowed.unwrap()),
            "integer" => json!(self.rng.random_range(least..=most)),
            "real" => json!(f64::from(self.rng.random_range(-20..20)) / 4.0),
            "boolean" => json!(self.chance(50)),
            "string" if base.get("maxLength").is_some() => json!(self.pick(&WORDS[..5])),
            "string" => json!(self.pick(&WORDS)),
            _ if base.get("refTable").is_some() && self.chance(40) => {
                json!(["named-uuid", format!("r{}", self.rng.random_range(0..4))])
            }
            _ => json!(["uuid", self.some_uuid()]),
        }
    }
}

/// `min` of a column's type.
fn min(ty: &Json) -> u64 {
    ty.get("min").and_then(Json::as_u64).unwrap_or(1)
}

/// `max` of a column's type.
fn max(ty: &Json) -> u64 {
    ty.get("max").map_or(1, |max| max.as_u64().unwrap_or(u64::MAX))
}

/// The type of a column's elements or keys.
fn atom_type(ty: &Json) -> String {
    let key = ty.get("key").unwrap_or(ty);
    key.get("type").unwrap_or(key).as_str().unwrap().to_owned()
}

/// Whether `<` makes sense.
fn is_ordered(ty: &Json) -> bool {
    let number = ["integer", "real"].contains(&atom_type(ty).as_str());
    number && ty.get("value").is_none() && max(ty) == 1
}
