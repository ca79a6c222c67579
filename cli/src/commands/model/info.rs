//! `doorbell model info`.

use doorbell_lm::{Gemma, Image, STREAMS, image};
use serde_json::json;

use crate::failure::Failure;
use crate::models;
use crate::output;

/// Prints what a model is made of.
pub fn run(model: &str, as_json: bool) -> Result<(), Failure> {
    let image = models::image(model)?;
    let bytes = image.to_bytes();
    let header = image::header(&bytes).map_err(Failure::input)?;
    let Image { model, about } = &image;
    let shape = model.shape;
    let (macs, last) = shape.weight_macs();
    if as_json {
        let gemma = shape.gemma.map(|gemma| {
            json!({
                "embedding": gemma.embedding, "laurel": gemma.laurel, "window": gemma.window, "global": gemma.global,
                "own": gemma.own, "cut": gemma.cut,
            })
        });
        let value = json!({
            "name": about.name, "licence": about.licence, "bytes": bytes.len(), "check": format!("{:08x}", header.check),
            "width": shape.width, "layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads,
            "head_width": shape.head_width, "hidden": shape.hidden, "vocabulary": shape.vocabulary,
            "context": shape.context, "macs_per_token": macs, "macs_of_the_last_matrix": last,
            "gemma": gemma, "chat": !about.chat.is_empty(), "ends": about.ends,
        });
        return output::print_raw(&output::json(&value));
    }
    let licence =
        if about.licence.is_empty() { "not in the file".to_owned() } else { output::plain(&about.licence) };
    let million = |macs: u64| macs as f64 / 1e6;
    output::print(&format!(
        "name        {}\nlicence     {licence}\nimage       {} bytes, check {:08x}\n\
         shape       width {}, {} layers, {} heads over {} of keys and values, {} wide, hidden {}\n\
         {}vocabulary  {} tokens\ncontext     {} tokens\n\
         a token     {:.3} M multiplications by weights, {:.3} M of them for its logits\n\
         chat        {}\n",
        output::plain(&about.name),
        bytes.len(),
        header.check,
        shape.width,
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.head_width,
        shape.hidden,
        shape.gemma.as_ref().map(gemma).unwrap_or_default(),
        shape.vocabulary,
        shape.context,
        million(macs),
        million(last),
        if about.chat.is_empty() { "no template" } else { "with a template" },
    ))
}

fn gemma(gemma: &Gemma) -> String {
    let Gemma { embedding, laurel, window, global, own, cut } = gemma;
    format!(
        "Gemma 3N    {STREAMS} streams, {own} layers with keys and values of their own, windows of {window} but in every {global}. layer,\n\
         {:12}embeddings by layer of {embedding}, LAuReLs of {laurel}, gates cut in {cut} layers\n",
        ""
    )
}
