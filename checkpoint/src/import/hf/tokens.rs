//! The tokens that the files beside tokenizer.json add to its vocabulary, in the way that `transformers` adds them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

/// The file that is at fault, and what is wrong with it.
pub(super) type Fault = (&'static str, String);

pub(super) const CONFIG: &str = "tokenizer_config.json";
pub(super) const MAP: &str = "special_tokens_map.json";
pub(super) const ADDED: &str = "added_tokens.json";

/// The files as they were read; null where a file is missing.
pub(super) struct Files<'f> {
    pub config: &'f Value,
    pub map: &'f Value,
    pub added: &'f Value,
}

/// The tokens that have a role, and the id of every token.
pub(super) struct Roles {
    /// The text of each role, such as `bos_token`.
    pub texts: BTreeMap<String, String>,
    /// The id of each token of the vocabulary, and of each added token, by its text.
    pub ids: HashMap<String, u64>,
}

/// A token that is added to a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl Token {
    fn read(value: &Value, at: &str) -> Result<Self, String> {
        let content = value["content"].as_str().ok_or_else(|| format!("{at} has no content"))?;
        let flag = |name: &str, otherwise: bool| match &value[name] {
            Value::Null => Ok(otherwise),
            Value::Bool(flag) => Ok(*flag),
            other => Err(format!("{name} of {at} is {other}, expected true or false")),
        };
        let special = flag("special", false)?;
        Ok(Self {
            content: content.to_owned(),
            single_word: flag("single_word", false)?,
            lstrip: flag("lstrip", false)?,
            rstrip: flag("rstrip", false)?,
            normalized: flag("normalized", !special)?,
            special,
        })
    }

    fn plain(content: &str, special: bool) -> Self {
        let content = content.to_owned();
        Self { content, single_word: false, lstrip: false, rstrip: false, normalized: !special, special }
    }

    fn json(&self, id: u64) -> Value {
        let Self { content, single_word, lstrip, rstrip, normalized, special } = self;
        json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
               "normalized": normalized, "special": special})
    }
}

/// A reference to a token: its text alone, or a token with flags of its own.
#[derive(Clone, Debug)]
enum Named {
    Text(String),
    Token(Token),
}

impl Named {
    /// An object in special_tokens_map.json is always a special token. An object in tokenizer_config.json must declare itself a token.
    fn read(value: &Value, file: &'static str, at: &str) -> Result<Option<Self>, Fault> {
        let token = |value: &Value| Token::read(value, at).map_err(|problem| (file, problem));
        match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(Self::Text(text.clone()))),
            Value::Object(_) if value["__type"] == "AddedToken" => Ok(Some(Self::Token(token(value)?))),
            Value::Object(_) if file == MAP => {
                let mut value = value.clone();
                value["special"] = true.into();
                Ok(Some(Self::Token(token(&value)?)))
            }
            other => {
                let problem =
                    format!("{at} is {other}, expected a text, or an object with \"__type\": \"AddedToken\"");
                Err((file, problem))
            }
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Token(token) => &token.content,
        }
    }
}

const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Appends the tokens that the files add to the `added_tokens` of a tokenizer.json.
pub(super) fn add(tokenizer: &mut Value, files: &Files<'_>) -> Result<Roles, Fault> {
    if files.config["split_special_tokens"] == true {
        let problem =
            "split_special_tokens is true: special tokens in a text would be cut, which is not done";
        return Err((CONFIG, problem.into()));
    }
    let roles = roles(files)?;
    let extra = extra(files)?;
    let told = told(tokenizer, files, &roles, &extra)?;
    let named: HashSet<&str> = roles.iter().map(|(_, role)| role.text()).collect();

    let own: Vec<Token> = tokenizer["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        // The reader of the tokeniser rejects malformed tokens later.
        .filter_map(|token| Token::read(token, "").ok())
        .collect();
    let mut known: HashSet<&str> = own.iter().map(|token| token.content.as_str()).collect();
    let mut more: Vec<Token> = vec![];
    for token in told.values() {
        known.insert(&token.content);
        more.push(Token {
            special: token.special || named.contains(token.content.as_str()),
            ..token.clone()
        });
    }
    let (mut texts, mut tokens) = (HashSet::new(), HashSet::new());
    let all = roles.iter().map(|(_, role)| (role, true)).chain(extra.iter().map(|extra| (extra, false)));
    for (token, role) in all {
        let fresh = match token {
            Named::Text(text) => texts.insert(text.as_str()),
            Named::Token(token) => tokens.insert(token.content.as_str()),
        };
        if known.contains(token.text()) || !fresh {
            continue;
        }
        more.push(match token {
            Named::Text(text) => Token::plain(text, true),
            Named::Token(token) => Token { special: token.special || role, ..token.clone() },
        });
    }
    let ids = number(tokenizer, &own, more)?;
    let texts = roles.iter().map(|(name, role)| (name.clone(), role.text().to_owned())).collect();
    Ok(Roles { texts, ids })
}

/// Appends `more` to the tokens `own`, with the ids that the tokeniser assigns to them.
fn number(tokenizer: &mut Value, own: &[Token], more: Vec<Token>) -> Result<HashMap<String, u64>, Fault> {
    let mut ids = HashMap::new();
    // A vocabulary maps texts to ids, or lists texts and scores in the order of the ids.
    match &tokenizer["model"]["vocab"] {
        Value::Object(held) => {
            ids.extend(held.iter().filter_map(|(text, id)| Some((text.clone(), id.as_u64()?))));
        }
        Value::Array(held) => {
            ids.extend((0..).zip(held).filter_map(|(id, pair)| Some((pair[0].as_str()?.to_owned(), id))));
        }
        _ => {}
    }
    let size = ids.len() as u64;
    let mut next = size;
    let mut highest = None;
    let mut state: HashMap<&str, &Token> = HashMap::new();
    for token in own.iter().filter(|token| !token.content.is_empty()) {
        let id = *ids.entry(token.content.clone()).or_insert_with(|| {
            next += 1;
            next - 1
        });
        highest = highest.max(Some(id));
        state.insert(&token.content, token);
    }
    // transformers adds these tokens in a second pass, which starts after the highest id of the first.
    let behind = highest.map_or(size, |highest| size.max(highest + 1));
    let mut added: Vec<Value> = tokenizer["added_tokens"].as_array().cloned().unwrap_or_default();
    for token in more.iter().filter(|token| !token.content.is_empty()) {
        if state.insert(&token.content, token) == Some(token) {
            continue;
        }
        if !ids.contains_key(&token.content) && next < behind {
            let problem = format!("{:?} would be a token between others of the vocabulary", token.content);
            return Err((CONFIG, problem));
        }
        let id = *ids.entry(token.content.clone()).or_insert_with(|| {
            next += 1;
            next - 1
        });
        added.push(token.json(id));
    }
    tokenizer["added_tokens"] = added.into();
    Ok(ids)
}

/// The tokens that have a role. Roles that every model knows come first. A later token of the same role replaces an earlier one.
fn roles(files: &Files<'_>) -> Result<Vec<(String, Named)>, Fault> {
    let mut roles: Vec<(String, Named)> = vec![];
    let mut set = |name: &str, role: Named| match roles.iter_mut().find(|(held, _)| held == name) {
        Some(held) => held.1 = role,
        None => roles.push((name.to_owned(), role)),
    };
    for name in ROLES {
        let (file, value) = match files.map.get(name) {
            Some(value) => (MAP, value),
            None => (CONFIG, &files.config[name]),
        };
        if let Some(role) = Named::read(value, file, name)? {
            set(name, role);
        }
    }
    // Roles of one model only, such as `image_token`. A value that is neither a text nor a token is a setting, such as `add_bos_token`.
    let of = |value: &'_ Value| -> Vec<(String, Value)> {
        let fields = value.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| name.ends_with("_token") && !ROLES.contains(&name.as_str()));
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let (config, map) = (of(files.config), of(files.map));
    let is_token = |value: &Value| value["__type"] == "AddedToken";
    let tokens = config.iter().filter(|(_, value)| is_token(value)).map(|named| (CONFIG, named));
    let texts = config.iter().filter(|(_, value)| value.is_string()).map(|named| (CONFIG, named));
    // New tokens get their ids in this order.
    let old =
        map.iter().filter(|(_, value)| value.is_string() || value.is_object()).map(|named| (MAP, named));
    for (file, (name, value)) in tokens.chain(old).chain(texts) {
        Named::read(value, file, name)?.into_iter().for_each(|role| set(name, role));
    }
    for (file, value) in [(CONFIG, files.config), (MAP, files.map)] {
        for (name, value) in value["extra_special_tokens"].as_object().into_iter().flatten() {
            let at = format!("{name} of extra_special_tokens");
            Named::read(value, file, &at)?.into_iter().for_each(|role| set(name, role));
        }
    }
    Ok(roles)
}

/// Special tokens without a role.
fn extra(files: &Files<'_>) -> Result<Vec<Named>, Fault> {
    let list = |value: &'_ Value, file: &'static str, name: &str| -> Result<Option<Vec<Named>>, Fault> {
        let list = match value {
            Value::Null => return Ok(None),
            Value::Array(list) => list,
            other => return Err((file, format!("{name} is {other}, expected a list of tokens"))),
        };
        let at = format!("an entry of {name}");
        let tokens = list.iter().map(|value| {
            // Only `extra_special_tokens` of special_tokens_map.json takes objects that do not declare themselves tokens.
            let form = if name == "extra_special_tokens" { file } else { CONFIG };
            Named::read(value, form, &at).map_err(|(_, problem)| (file, problem))
        });
        Ok(Some(tokens.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()))
    };
    let additional =
        |value: &Value, file| list(&value["additional_special_tokens"], file, "additional_special_tokens");
    let named = |value: &Value, file| match &value["extra_special_tokens"] {
        Value::Object(_) => Ok(None),
        other => list(other, file, "extra_special_tokens"),
    };
    let mut extra = named(files.config, CONFIG)?.filter(|list| !list.is_empty());
    if extra.is_none() {
        extra = additional(files.config, CONFIG)?;
    }
    if let Some(more) = named(files.map, MAP)? {
        extra.get_or_insert_default().extend(more);
    }
    match extra {
        Some(extra) => Ok(extra),
        None => Ok(additional(files.map, MAP)?.unwrap_or_default()),
    }
}

/// Tokens by id. They come from added_tokens_decoder. If there is none, they come from added_tokens.json and then from tokenizer.json.
fn told(
    tokenizer: &Value,
    files: &Files<'_>,
    roles: &[(String, Named)],
    extra: &[Named],
) -> Result<BTreeMap<u64, Token>, Fault> {
    let mut told = BTreeMap::new();
    match &files.config["added_tokens_decoder"] {
        Value::Null => {}
        Value::Object(list) => {
            for (id, token) in list {
                let at = || format!("token {id} of its added_tokens_decoder");
                let number = id.parse().map_err(|_| {
                    (CONFIG, format!("{id:?} of its added_tokens_decoder is no id of a token"))
                })?;
                told.insert(number, Token::read(token, &at()).map_err(|problem| (CONFIG, problem))?);
            }
            return Ok(told);
        }
        _ => return Err((CONFIG, "its added_tokens_decoder is no object".into())),
    }
    let special: HashSet<&str> = roles
        .iter()
        .filter(|(name, _)| ROLES.contains(&name.as_str()))
        .map(|(_, role)| role)
        .chain(extra)
        .map(Named::text)
        .collect();
    for (text, id) in files.added.as_object().into_iter().flatten() {
        let id =
            id.as_u64().ok_or_else(|| (ADDED, format!("{text:?} has {id}, expected the id of a token")))?;
        told.insert(id, Token::plain(text, special.contains(text.as_str())));
    }
    for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        if let (Some(id), Ok(token)) = (token["id"].as_u64(), Token::read(token, "")) {
            told.insert(id, token);
        }
    }
    Ok(told)
}
